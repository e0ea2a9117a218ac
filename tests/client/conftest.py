from __future__ import annotations

from collections.abc import Iterator

import pytest
from wire_double import KEY, Double, Running

import art


@pytest.fixture
def double() -> Double:
    return Double()


@pytest.fixture
def server(double: Double) -> Iterator[str]:
    with Running(double) as url:
        yield url


@pytest.fixture
def backend(server: str) -> art.RemoteBackend:
    return art.RemoteBackend(server, KEY)


@pytest.fixture
def model(tmp_path) -> art.TrainableModel:
    return art.TrainableModel(name="agent", project="games", base_model="art/nano", base_path=str(tmp_path))
