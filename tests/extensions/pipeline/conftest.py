from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fast_backend import FastBackend

import art


@pytest.fixture
def backend() -> FastBackend:
    return FastBackend()


@pytest.fixture
def model(tmp_path: Path) -> Any:
    return art.TrainableModel(
        name="agent", project="p", base_model="art/nano", base_path=str(tmp_path), report_metrics=[]
    )
