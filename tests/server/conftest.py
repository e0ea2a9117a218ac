"""One renderer a test session; a gateway a test."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.append(
    str(Path(__file__).parents[1] / "extensions" / "ui")
)  # its made runs, for the pages that a server mounts
sys.path.append(str(Path(__file__).parents[1] / "rendering"))  # its real tokenizers

from chat_folder import write_chat_folder
from homes import Home
from live import Live, run_gateway
from private_postgres import PrivatePostgres, programs, running_postgres
from scripted_engine import Script, ScriptedEngine

from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> LibraryRenderer:
    """Qwen3's format over a tiny tokenizer."""
    return create_chat_renderer(write_chat_folder(tmp_path_factory.mktemp("tiny")), name="tiny")


@pytest.fixture
def engine(renderer: LibraryRenderer) -> ScriptedEngine:
    """Says hello until a test sets another `answer`."""
    return ScriptedEngine(lambda request: Script(ids=renderer.encode("hello<|im_end|>")))


@pytest.fixture
async def live(tmp_path: Path, engine: ScriptedEngine, renderer: LibraryRenderer) -> AsyncIterator[Live]:
    """A running gateway."""
    async with run_gateway(tmp_path / "ledger.sqlite", engine, renderer) as running:
        yield running


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
