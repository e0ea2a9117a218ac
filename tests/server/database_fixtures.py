"""A real Postgres, and a home for ledger and jobs of each kind; a conftest imports the fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from homes import Home
from private_postgres import PrivatePostgres, programs, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """A real Postgres for all tests that lose nothing when it is killed: it does not wait for the disk."""
    if programs() is None:
        pytest.skip("no Postgres on this machine: sh tests/install_programs.sh")
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def home(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Home]:
    """An empty ledger and table of jobs, of each kind."""
    if request.param == "sqlite":
        yield Home(tmp_path)
        return
    server = request.getfixturevalue("postgres")
    made = Home(tmp_path, server.create_database(), server)
    yield made
    await made.close()
