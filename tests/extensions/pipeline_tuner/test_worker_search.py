"""The rule, on pipelines whose best number of workers is known in closed form."""

from __future__ import annotations

import random

import pytest
from modelled_pipeline import ModelledPipeline

from art_extensions.pipeline_tuner import PipelineAutotuneConfig, WorkerSearch
from art_extensions.pipeline_tuner.measurement import Measurement, is_worth_it

ROLLOUT_BOUND = ModelledPipeline(rollout_s=20, trainer_s=4)
TRAINER_BOUND = ModelledPipeline(rollout_s=4, trainer_s=2)
SATURATED = ModelledPipeline(saturated_by=10)
CASES = [ROLLOUT_BOUND, TRAINER_BOUND, SATURATED]
NAMES = ["rollout-bound", "trainer-bound", "saturated"]


def tuned(
    pipeline: ModelledPipeline,
    start: int = 16,
    *,
    steps: int = 1200,
    noise: float = 0.0,
    seed: int = 0,
    most: float = 1000,
    worker_step: int = 2,
) -> tuple[WorkerSearch, list[int]]:
    """The search, and the workers of each step."""
    search = WorkerSearch(start, PipelineAutotuneConfig(mode="online", worker_step=worker_step))
    chance, used = random.Random(seed) if noise else None, []
    for _ in range(steps):
        used.append(search.workers)
        change = search.add_step(pipeline.figures(search.workers, noise, chance), most=most)
        assert change is None or (change.workers == search.workers != used[-1] and change.reason)
    return search, used


def test_the_best_numbers_are_those_of_the_closed_form() -> None:
    assert [one.best for one in CASES] == [20, 8, 10]


@pytest.mark.parametrize("start", [1, 5, 16, 33])
@pytest.mark.parametrize("worker_step", [1, 2, 4])
@pytest.mark.parametrize("pipeline", CASES, ids=NAMES)
def test_it_reaches_the_best_number_and_stays(
    pipeline: ModelledPipeline, start: int, worker_step: int
) -> None:
    search, used = tuned(pipeline, start, worker_step=worker_step)
    assert abs(search.best - pipeline.best) <= worker_step
    assert len({*used[600:]} - {search.best}) <= 2, "it tries the next numbers now and then, and no others"
    assert used[600:].count(search.best) > 0.85 * 600


@pytest.mark.parametrize("noise", [0.05, 0.1])
@pytest.mark.parametrize("pipeline", CASES, ids=NAMES)
def test_it_reaches_it_where_steps_differ_by_chance(pipeline: ModelledPipeline, noise: float) -> None:
    found = [tuned(pipeline, steps=600, noise=noise, seed=seed)[0].best for seed in range(10)]
    assert all(abs(best - pipeline.best) <= 2 for best in found), found


def test_the_way_is_the_one_that_is_described() -> None:
    _, used = tuned(ModelledPipeline(saturated_by=8), steps=80)
    assert [*dict.fromkeys(used)] == [16, 18, 14, 12, 10, 8, 6] and used[-1] == 8
    _, used = tuned(TRAINER_BOUND, 25, steps=40)
    assert [*dict.fromkeys(used)] == [25, 9], "as many fewer, in steps of two, as waited"


def test_fewer_workers_where_groups_come_too_late() -> None:
    search, used = tuned(ModelledPipeline(stale_above=11))
    assert search.best == 10 and max(used[100:]) <= 12
    early = WorkerSearch(16, PipelineAutotuneConfig(target_spill_probability=0.3))
    for _ in range(100):
        early.add_step(ModelledPipeline(stale_above=11).figures(early.workers))
    assert early.best > 16, "a fifth is allowed here"


def test_one_late_group_is_chance() -> None:
    some = Measurement(16, 4)
    for stale_above in (1, *[99] * 7):
        some.add(ModelledPipeline(stale_above=stale_above).figures(16))
    assert some.stale_share > 0.03 and not some.is_too_stale(0.03)


def test_no_more_workers_than_have_something_to_do() -> None:
    search, used = tuned(ROLLOUT_BOUND, most=12)
    assert search.best == 12 and max(used[20:]) == 12


def test_what_changes_in_time_is_followed() -> None:
    config = PipelineAutotuneConfig()
    search = WorkerSearch(16, config)
    for pipeline in (SATURATED, ModelledPipeline(saturated_by=20), TRAINER_BOUND, SATURATED):
        for _ in range(1500):
            search.add_step(pipeline.figures(search.workers))
        assert abs(search.best - pipeline.best) <= 2


def test_the_first_steps_with_a_number_are_not_measured() -> None:
    search = WorkerSearch(16, PipelineAutotuneConfig(warmup_ignore_steps=3, window_steps=2))
    changed = [search.add_step(ROLLOUT_BOUND.figures(16)) for _ in range(6)]
    assert changed[:5] == [None] * 5, "16 workers give 16 groups in four steps"
    assert changed[5] is not None and changed[5].workers == 18
    assert changed[5].reason == "the trainer waited for groups 20% of the time"
    eager = WorkerSearch(16, PipelineAutotuneConfig(warmup_ignore_steps=0, window_steps=1))
    assert eager.add_step(ROLLOUT_BOUND.figures(16)) is not None


def test_more_workers_must_give_half_of_what_they_promise() -> None:
    def measured(workers: int, seconds: list[float]) -> Measurement:
        some = Measurement(workers, 4)
        for rollout_s in seconds:
            some.add(ModelledPipeline(rollout_s=rollout_s, trainer_s=0.01).figures(workers))
        return some

    steady, sixteen = [10.0] * 4, measured(16, [10.0] * 4)
    growth = 18 / 16 - 1
    assert is_worth_it(sixteen, measured(18, steady), growth=growth, last=False) is True
    assert is_worth_it(sixteen, measured(18, [11.0] * 4), growth=growth, last=False) is False
    scattered = measured(18, [5.0, 14.0, 6.0, 15.0])
    assert is_worth_it(sixteen, scattered, growth=growth, last=False) is None
    assert is_worth_it(sixteen, scattered, growth=growth, last=True) is True
    assert is_worth_it(Measurement(16, 4), sixteen, growth=growth, last=False) is True
