"""The service, the server behind it or a worker dies by SIGKILL while the real SDK trains: its own retries go
on, and the weights are those of a run that nobody disturbed, bit by bit.
"""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tinker_fixtures import TORCH
from tinker_service import DONE, PYTHON, Service, serving, with_sdk

PROGRAM = Path(__file__).parent / "programs" / "steps_on_fixed_data.py"
STEPS = 8

pytestmark = with_sdk


def train(service: Service, kills: dict[int, str]) -> list[str]:
    """The program's lines. kills: what dies after which step's line."""
    program = subprocess.Popen(
        [str(PYTHON), str(PROGRAM), str(STEPS), TORCH],
        env=service.variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ending = threading.Timer(500, program.kill)
    ending.start()
    lines = []
    assert program.stdout is not None and program.stderr is not None
    for line in program.stdout:
        lines.append(line.strip())
        if line.startswith("step ") and (what := kills.get(int(line.split()[1]))) is not None:
            service.kill(what)
    code = program.wait()
    ending.cancel()
    assert code in DONE and lines[-1].startswith("saved "), (
        program.stderr.read()[-3000:] + service.log.read_text()[-3000:]
    )
    return lines


def weights(service: Service, lines: list[str]) -> dict[str, bytes]:
    """The files of the last step: adapter, moments, random state."""
    run = lines[0].split()[1].replace(":train:", "-")
    folder = service.data / "tinker" / "models" / run / "checkpoints" / f"{STEPS:04d}"
    names = ("adapter_model.safetensors", "optimizer.safetensors")
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, bytes]]:
    with serving(tmp_path_factory.mktemp("calm") / "data") as service:
        lines = train(service, {})
        return lines, weights(service, lines)


@pytest.mark.parametrize(
    "kills",
    [
        {1: "art.training.worker", 4: "art.engine.builtin.worker"},
        {1: "art.server", 4: "art.training.worker"},
        {1: "service", 4: "service"},
    ],
    ids=["workers", "server", "service"],
)
def test_killed_in_the_middle_it_ends_with_the_same_weights(
    kills: dict[int, str], undisturbed: tuple[list[str], dict[str, bytes]], tmp_path: Path
) -> None:
    calm, expected = undisturbed
    with serving(tmp_path / "data") as service:
        lines = train(service, kills)
        assert lines[1:-1] == calm[1:-1]
        assert weights(service, lines) == expected


def test_two_runs_that_take_turns_are_each_the_run_alone(
    undisturbed: tuple[list[str], dict[str, bytes]], tmp_path: Path
) -> None:
    calm, expected = undisturbed
    with serving(tmp_path / "data", "--turns") as service, ThreadPoolExecutor(2) as pool:
        kills: list[dict[int, str]] = [{1: "art.training.worker"}, {}]
        for lines in pool.map(lambda kill: train(service, kill), kills):
            assert lines[1:-1] == calm[1:-1]
            assert weights(service, lines) == expected
