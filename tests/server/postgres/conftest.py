"""A Postgres to kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from private_postgres import PrivatePostgres, programs, running_postgres


@pytest.fixture(scope="package")
def durable() -> Iterator[PrivatePostgres]:
    """A Postgres that waits for the disk, for those who kill it. They start it again."""
    if programs() is None:
        pytest.skip("no Postgres on this machine: sh tests/install_programs.sh")
    with running_postgres(durable=True) as server:
        yield server
