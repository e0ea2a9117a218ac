"""Finds what the tests here borrow."""

from __future__ import annotations

import borrowed  # noqa: F401  it says where that is
