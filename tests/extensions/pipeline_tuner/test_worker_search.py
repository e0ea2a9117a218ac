"""The rule, on pipelines whose best number of workers is known in closed form."""

from __future__ import annotations

import random

import pytest
from modelled_pipeline import ModelledPipeline

from art_extensions.pipeline_tuner import PipelineAutotuneConfig, WorkerSearch

ROLLOUT_BOUND = ModelledPipeline(rollout_s=20, trainer_s=4)
TRAINER_BOUND = ModelledPipeline(rollout_s=4, trainer_s=2)
SATURATED = ModelledPipeline(saturated_by=10)
CASES = [ROLLOUT_BOUND, TRAINER_BOUND, SATURATED]
NAMES = ["rollout-bound", "trainer-bound", "saturated"]


def tuned(
    pipeline: ModelledPipeline, start: int, *, steps: int = 1200, noise: float = 0.0, seed: int = 0, **fields: int
) -> tuple[WorkerSearch, list[int]]:
    """The search, and the workers of each step."""
    search, used = WorkerSearch(start, PipelineAutotuneConfig(mode="online", **fields)), []
    chance = random.Random(seed) if noise else None
    for _ in range(steps):
        used.append(search.workers)
        change = search.add_step(pipeline.figures(search.workers, noise, chance))
        assert change is None or (change.workers == search.workers and change.reason)
    return search, used


@pytest.mark.parametrize("start", [1, 2, 5, 16, 33])
@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("pipeline", CASES, ids=NAMES)
def test_it_reaches_the_best_number_and_stays(pipeline: ModelledPipeline, start: int, step: int) -> None:
    search, used = tuned(pipeline, start, worker_step=step)
    print(pipeline.best, start, step, search.best, used[::5])
    assert abs(search.best - pipeline.best) <= step
    assert all(abs(workers - pipeline.best) <= 2 * step for workers in used[len(used)//2:])


@pytest.mark.parametrize("pipeline", CASES, ids=NAMES)
def test_noise(pipeline: ModelledPipeline) -> None:
    for noise in (0.05, 0.1, 0.2):
        out = []
        for seed in range(40):
            search, used = tuned(pipeline, 16, noise=noise, seed=seed)
            out.append(search.best)
        print(pipeline.best, noise, out)
    assert 0
