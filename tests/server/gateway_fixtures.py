"""One renderer a test session; a gateway a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from chat_folder import write_chat_folder
from live import Live, run_gateway
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
