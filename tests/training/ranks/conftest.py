from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]


class TestGang:
    """Real processes, a rank each."""

    __test__ = False

    def __init__(self, world: int, deadline: int = 120) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        port = 0
        for rank in range(world):
            command = [
                str(Path(__file__).parent / "rank_process.py"),
                *map(str, (rank, world, port, deadline)),
            ]
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            port = port or self._read(rank)["port"]
        for rank in range(world):
            while "joined" not in self._read(rank):
                pass

    def run(self, case: dict[str, Any]) -> list[dict[str, Any]]:
        """What each rank answers."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(case) + "\n")
            process.stdin.flush()
        return [self._read(rank) for rank in range(len(self.processes))]

    def _read(self, rank: int) -> dict[str, Any]:
        stdout = self.processes[rank].stdout
        assert stdout is not None
        line = stdout.readline()
        assert line, f"rank {rank} ended"
        return dict(json.loads(line))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="session")
def gang_of() -> Iterator[Callable[[int], TestGang]]:
    """Gangs by their size, started once."""
    gangs: dict[int, TestGang] = {}

    def get(world: int) -> TestGang:
        if world not in gangs:
            gangs[world] = TestGang(world)
        return gangs[world]

    yield get
    for gang in gangs.values():
        gang.close()
