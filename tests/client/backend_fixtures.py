"""A backend of a server that is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from wire_double import KEY, Double

import art
from serving import serving_in_a_thread


@pytest.fixture
def double() -> Double:
    return Double()


@pytest.fixture
def server(double: Double) -> Iterator[str]:
    with serving_in_a_thread(double.app()) as url:
        yield url


@pytest.fixture
def backend(server: str) -> art.RemoteBackend:
    return art.RemoteBackend(server, KEY)


@pytest.fixture
def model(tmp_path) -> art.TrainableModel:
    return art.TrainableModel(name="agent", project="games", base_model="art/nano", base_path=str(tmp_path))
