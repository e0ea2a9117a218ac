"""A Postgres to kill."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "server"))  # its homes and its Postgres
sys.path.append(str(Path(__file__).parents[1] / "ui"))  # its made runs

from database_fixtures import home, postgres  # noqa: F401  fixtures
from private_postgres import PrivatePostgres, programs, running_postgres


@pytest.fixture(scope="package")
def durable() -> Iterator[PrivatePostgres]:
    """A Postgres that waits for the disk, for those who kill it. They start it again."""
    if programs() is None:
        pytest.skip("no Postgres on this machine: sh tests/install_programs.sh")
    with running_postgres(durable=True) as server:
        yield server
