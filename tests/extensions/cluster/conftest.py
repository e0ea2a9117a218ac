"""The disks' tests use the tiny batches of the trainer's tests; those on Ray what hurts workers there, and
Tinker's program.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

for room in ("training", "faults", "server/workers", "extensions/ui", "extensions/tinker"):
    sys.path.insert(0, str(Path(__file__).parents[2] / room))

from bench.nodes.ray_nodes import RayNodes, ray_nodes  # noqa: E402
from tiny_base import build_base  # noqa: E402


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """A real Ray with token authentication; tests add the nodes that they need, and take them away.

    It ends with its file: its processes, which do nothing, take a core's tenth from all tests after it.
    """
    with ray_nodes(tmp_path_factory.mktemp("ray")) as nodes:
        yield nodes


@pytest.fixture
def in_cluster(cluster: RayNodes, monkeypatch: pytest.MonkeyPatch) -> RayNodes:
    """The cluster, and its token in the environment of what this test starts."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return cluster
