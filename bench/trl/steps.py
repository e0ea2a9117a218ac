"""TRL's `GRPOTrainer` as a resident worker that computes one gradient at a time."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from crosscheck import environment

from art.batch.batch_types import GroupRow, RolloutRow, SampleRow

SCRIPTS = Path(__file__).parent
ANSWER_SECONDS = 600.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    # What our own processes ask of glibc for themselves: freed memory is kept.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
}

TrlRow = dict[str, Any]


def rollout_rows(groups: Sequence[GroupRow]) -> list[list[TrlRow]]:
    """One row per rollout: all after the first prompt is completion, and a mask says what was sampled."""
    return [[_rollout_row(rollout) for rollout in group.rollouts] for group in groups]


def turn_rows(groups: Sequence[GroupRow]) -> list[list[TrlRow]]:
    """One row per turn, its prompt the whole history, its reward the rollout's."""
    return [
        [_row(sample, rollout) for rollout in group.rollouts for sample in rollout.samples]
        for group in groups
    ]


def _row(sample: SampleRow, rollout: RolloutRow) -> TrlRow:
    return {
        "prompt_ids": [int(token) for token in sample.prompt_ids],
        "completion_ids": [int(token) for token in sample.completion_ids],
        "logprobs": [float(value) for value in sample.completion_logprobs],
        "env_mask": [1] * len(sample.completion_ids),
        "recorded_reward": rollout.reward,
    }


def _rollout_row(rollout: RolloutRow) -> TrlRow:
    first, last = rollout.samples[0], rollout.samples[-1]
    whole = [int(token) for token in (*last.prompt_ids, *last.completion_ids)]
    start = len(first.prompt_ids)
    mask, logprobs = [0] * (len(whole) - start), [0.0] * (len(whole) - start)
    for sample in rollout.samples:
        at = len(sample.prompt_ids) - start
        stop = at + len(sample.completion_ids)
        mask[at:stop] = [1] * len(sample.completion_ids)
        logprobs[at:stop] = [float(value) for value in sample.completion_logprobs]
    return {
        "prompt_ids": whole[:start],
        "completion_ids": whole[start:],
        "logprobs": logprobs,
        "env_mask": mask,
        "recorded_reward": rollout.reward,
    }


@dataclass(frozen=True, kw_only=True)
class Step:
    """What TRL says of one gradient."""

    seconds: float
    loss: float
    tokens: int
    """Forwarded, padding included."""


class TrlSteps:
    """The worker's face. `python -P` keeps the script's folder out of its module path."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    def step(self, *, gradients: Path | None = None) -> Step:
        order = {"gradients": str(gradients) if gradients else None}
        self._stdin.write(json.dumps(order) + "\n")
        self._stdin.flush()
        return Step(**answer(self._stdout))


@contextmanager
def trl_steps(job: Mapping[str, Any], folder: Path) -> Iterator[TrlSteps]:
    """Start the worker on a batch and wait until it is ready; it ends with the block."""
    path = folder / "job.json"
    path.write_text(json.dumps({**job, "folder": str(folder / "trl")}))
    with running("step_worker.py", path, folder) as process:
        assert process.stdout is not None
        answer(process.stdout)
        yield TrlSteps(process)


@contextmanager
def running(script: str, job: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A script of this folder in TRL's environment, its errors in `folder/SCRIPT.log`."""
    log = (folder / f"{script}.log").open("w")
    process = subprocess.Popen(
        [str(environment.python("trl")), "-P", str(SCRIPTS / script), str(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=os.environ | ENVIRONMENT,
        cwd=folder,
    )
    try:
        yield process
    except EOFError:
        lines = (folder / f"{script}.log").read_text().splitlines()
        raise SystemExit("\n".join([f"{script} ended:", *lines[-25:]])) from None
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10.0)
        log.close()


def answer(stream: IO[str], *, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
    """The next line, as JSON. Raises EOFError when the worker has ended, TimeoutError after `seconds`."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        if not selector.select(seconds):
            raise TimeoutError(f"TRL's worker gave no answer in {seconds:g} s")
    line = stream.readline()
    if not line:
        raise EOFError
    found: dict[str, Any] = json.loads(line)
    return found
