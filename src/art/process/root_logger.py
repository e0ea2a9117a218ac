"""The root logger of a program whose libraries would set it up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def preserve_root_logger() -> Iterator[None]:
    """`MCPServer()` sets up the root logger of its process, unless that has a handler: here it has one."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
