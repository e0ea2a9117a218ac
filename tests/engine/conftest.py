"""The engine's own tests use the tiny models of the contract tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "contracts"))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from engine_models import build_qwen3

    return build_qwen3(tmp_path_factory.mktemp("base"))
