"""The service, the server behind it or a worker dies by SIGKILL while the real SDK trains, saves and samples:
its own retries go on, and samples and weights are those of a run that nobody disturbed, bit by bit.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pytest
from tinker_fixtures import TORCH
from tinker_service import DONE, PYTHON, Service, serving, with_sdk

PROGRAM = Path(__file__).parent / "programs" / "steps_on_fixed_data.py"
STEPS = 8
TRAINER, ENGINE, SERVER = "art.training.worker", "art.engine.builtin.worker", "art.server"

pytestmark = with_sdk


@dataclass
class Trained:
    """What a program said, and what it left."""

    lines: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """When it began each part, as `training 3`."""
    weights: dict[str, bytes] = field(default_factory=dict)
    """The files of the last step: adapter, moments, random state."""

    @property
    def said(self) -> list[str]:
        """All but the ids of the run."""
        return self.lines[1:-1]

    @property
    def step_s(self) -> float:
        """The usual time from a step's first request to its end."""
        return median(self.seconds[f"step {n}"] - self.seconds[f"training {n}"] for n in range(STEPS))

    def read_weights(self, service: Service) -> None:
        run = self.lines[0].split()[1].replace(":train:", "-")
        folder = service.data / "tinker" / "models" / run / "checkpoints" / f"{STEPS:04d}"
        for name in ("adapter_model.safetensors", "optimizer.safetensors"):
            self.weights[name] = (folder / name).read_bytes()


def train(service: Service, kills: Mapping[str, str], *, after_s: float = 0.0) -> Trained:
    """kills: what dies when the program begins which part, or so many seconds after it."""
    program = subprocess.Popen(
        [str(PYTHON), str(PROGRAM), str(STEPS), TORCH],
        env=service.variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    timers = [threading.Timer(500, program.kill)]
    timers[0].start()
    trained = Trained()
    assert program.stdout is not None and program.stderr is not None
    for line in program.stdout:
        part = " ".join(line.split()[:2])
        trained.lines.append(line.strip())
        trained.seconds[part] = time.monotonic()
        if (what := kills.get(part)) is not None and after_s:
            timers.append(threading.Timer(after_s, service.kill, [what]))
            timers[-1].start()
        elif what is not None:
            service.kill(what)
    code = program.wait()
    timers[0].cancel()
    for one in timers:
        one.join()
    assert code in DONE and trained.lines[-1].startswith("saved "), (
        program.stderr.read()[-3000:] + service.log.read_text()[-3000:]
    )
    trained.read_weights(service)
    return trained


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    with serving(tmp_path_factory.mktemp("calm") / "data") as service:
        trained = train(service, {})
    said = [line for line in trained.said if line.startswith("said ")]
    assert len({line.partition("[")[2] for line in said}) == STEPS, "all steps say the same"
    return trained


@pytest.mark.parametrize(
    "kills",
    [
        {"step 1": TRAINER, "sampling 3": ENGINE, "saving 5": ENGINE},
        {"saving 1": SERVER, "sampling 4": SERVER, "training 6": TRAINER},
        {"sampling 1": "service", "step 4": "service"},
    ],
    ids=["workers", "server", "service"],
)
def test_killed_in_the_middle_it_ends_with_the_same_weights(
    kills: dict[str, str], undisturbed: Trained, tmp_path: Path
) -> None:
    with serving(tmp_path / "data") as service:
        trained = train(service, kills)
    assert trained.said == undisturbed.said
    assert trained.weights == undisturbed.weights


def test_killed_by_a_timer_in_the_middle_of_a_step_it_ends_with_the_same_weights(
    undisturbed: Trained, tmp_path: Path
) -> None:
    kills = {"training 1": TRAINER, "training 3": SERVER, "training 5": "service"}
    with serving(tmp_path / "data") as service:
        trained = train(service, kills, after_s=undisturbed.step_s / 2)
        assert "are sent again" in service.log.read_text(), "no kill met a step"
    assert trained.said == undisturbed.said
    assert trained.weights == undisturbed.weights


def test_two_runs_that_take_turns_are_each_the_run_alone(undisturbed: Trained, tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--turns") as service, ThreadPoolExecutor(2) as pool:
        kills: list[dict[str, str]] = [{"step 1": TRAINER, "sampling 3": ENGINE}, {}]
        for trained in pool.map(lambda kill: train(service, kill), kills):
            assert trained.said == undisturbed.said
            assert trained.weights == undisturbed.weights
