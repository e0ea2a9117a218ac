from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess, running_server
from tiny_base import build_base


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture
def server(tmp_path: Path, base: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path / "data", base) as running:
        yield running
