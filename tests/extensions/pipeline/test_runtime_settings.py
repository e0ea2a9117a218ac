"""A pipeline's numbers in one object, their change while it runs, and the mean age of a batch."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, cast

import pytest
from fast_backend import FastBackend, pair, scenarios

import art
from art.errors import ConfigurationError, NotBuiltError
from art.tracking.rollout_figures import has_signal
from art_extensions.pipeline import (
    CheckpointInfo,
    CheckpointRetentionContext,
    PipelineRuntimeConfig,
    PipelineTrainer,
    keep_recent_and_top,
)
from art_extensions.pipeline.batch import BatchCollector
from art_extensions.pipeline.rollout_workers import FinishedGroup, NumberedScenario
from art_extensions.pipeline.settings import KEYWORDS, pipeline_settings, queue_size
from waiting import DEADLINE_S, turns, until


def made(model: Any, backend: Any, rollout: Any = None, **options: Any) -> PipelineTrainer[Any, Any]:
    return PipelineTrainer(model, backend, rollout, scenarios(40), None, eval_every_n_steps=0, **options)


def test_the_config_has_the_defaults_of_the_keywords() -> None:
    own = PipelineRuntimeConfig().model_dump(exclude={"score_reference_groups_per_step"})
    own.pop("score_reference_rollouts_per_group")
    assert own == {name: KEYWORDS[name].default for name in own}
    assert art.PipelineRuntimeConfig is PipelineRuntimeConfig
    with pytest.raises(ValueError, match="num_workers"):
        PipelineRuntimeConfig(num_workers=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"rollout_executor": object()}, NotBuiltError, r"rollout_executor=.*run_in_executor"),
        ({"score_reference_groups_per_step": 4.0}, NotBuiltError, "groups_per_step=4"),
        ({"score_reference_rollouts_per_group": 4}, NotBuiltError, "rollouts_per_group=4"),
        (
            {"pipeline": PipelineRuntimeConfig(score_reference_groups_per_step=2)},
            NotBuiltError,
            "groups_per_step=2",
        ),
        (
            {"pipeline": PipelineRuntimeConfig(), "min_batch_size": 2},
            ConfigurationError,
            r"pipeline=\.\.\., min_batch_size=2\)",
        ),
        ({"pipeline": {"min_batch_size": 2}}, ConfigurationError, "no art.PipelineRuntimeConfig"),
        ({"limit_mean_steps_off_policy": -1}, ConfigurationError, "limit_mean_steps_off_policy=-1"),
        ({"kl_penalty_step_lag": 2}, ConfigurationError, "kl_penalty_coef"),
    ],
)
def test_what_would_not_act_is_refused_by_name(
    model: Any, options: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        made(model, art.RemoteBackend("http://127.0.0.1:1", "k"), **options)


def test_values_that_ask_for_nothing_are_taken(model: Any, backend: FastBackend) -> None:
    nothing = {"autotune": None, "rollout_executor": None, "score_reference_groups_per_step": 8.0}
    made(model, backend, score_reference_rollouts_per_group=None, optimizer_save_interval=50, **nothing)
    config = PipelineRuntimeConfig(score_reference_groups_per_step=8, score_reference_rollouts_per_group=None)
    made(model, backend, pipeline=config, **nothing)


class Batches:
    """A collector over groups of the given versions."""

    def __init__(self, *versions: int, **options: Any) -> None:
        self.fates: dict[int, str | None] = {}
        self.queue: asyncio.Queue[FinishedGroup | None] = asyncio.Queue()
        for number, version in enumerate(versions):
            group = FinishedGroup(
                numbered=NumberedScenario(number, {}), group=pair(), version=version, seconds=0
            )
            self.queue.put_nowait(group)
        self.queue.put_nowait(None)
        self.collector = BatchCollector(
            self.queue, pipeline_settings(options), has_signal=has_signal, on_group=self._on_group
        )

    def _on_group(self, finished: FinishedGroup, fate: str | None) -> None:
        self.fates[finished.numbered.number] = fate

    async def collect(self, step: int) -> list[int]:
        batch = await self.collector.collect(step)
        stale = cast(Literal["stale"], "stale")
        assert len(batch.untrained(stale)) == list(self.fates.values()).count("stale")
        return [one.numbered.number for one in batch.groups]


async def test_the_mean_age_of_a_batch_has_a_limit() -> None:
    batches = Batches(0, 3, 1, 3, min_batch_size=2, limit_mean_steps_off_policy=1.5)
    assert await batches.collect(4) == [1, 3], "of the ages 4, 1, 3, 1 the two oldest go"
    assert batches.fates == {0: "stale", 1: None, 2: "stale", 3: None}
    assert await Batches(4, 4, 1, 4, min_batch_size=4, limit_mean_steps_off_policy=0.75).collect(4) == [
        0,
        1,
        2,
        3,
    ]


async def test_more_groups_are_taken_where_the_limit_leaves_too_few() -> None:
    batches = Batches(2, 2, 4, 4, min_batch_size=2, max_batch_size=2, limit_mean_steps_off_policy=0)
    assert await batches.collect(4) == [2, 3]


async def test_without_a_limit_no_group_is_stale(model: Any, backend: FastBackend) -> None:
    assert await Batches(0, 1, max_steps_off_policy=None).collect(99) == [0, 1]
    assert queue_size(pipeline_settings({"max_steps_off_policy": None})) == 4 * 40

    async def rollout(*_: Any) -> art.TrajectoryGroup:
        return pair()

    await made(model, backend, rollout, max_batch_size=4, max_steps_off_policy=None, max_steps=2).train()
    assert [call["max_steps_off_policy"] for call in backend.calls] == [None, None]


async def test_the_settings_of_a_running_pipeline_change(model: Any, backend: FastBackend) -> None:
    running: set[int] = set()
    allowed = asyncio.Semaphore(0)

    async def rollout(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        running.add(scenario["number"])
        await allowed.acquire()
        running.remove(scenario["number"])
        return pair()

    first = PipelineRuntimeConfig(num_rollout_workers=1, min_batch_size=2, max_batch_size=2)
    trainer = made(model, backend, rollout, pipeline=first, max_steps=2)
    training = asyncio.create_task(trainer.train())
    await until(lambda: len(running) == 1)
    trainer.apply_pipeline_settings(PipelineRuntimeConfig(num_rollout_workers=3, min_batch_size=4))
    await until(lambda: len(running) == 3)
    trainer.apply_pipeline_settings(PipelineRuntimeConfig(num_rollout_workers=1, min_batch_size=4))
    with pytest.raises(ConfigurationError, match="num_rollout_workers=0"):
        trainer.apply_pipeline_settings(PipelineRuntimeConfig(num_rollout_workers=0))
    for _ in range(3):
        allowed.release()
    await until(lambda: len(running) == 1)
    await turns()
    assert len(running) == 1, "two workers have ended after their group"
    for _ in range(40):
        allowed.release()
    await asyncio.wait_for(training, DEADLINE_S)
    assert all(len(call["groups"]) >= 4 for call in backend.calls)


async def test_workers_wait_while_the_queue_is_full(model: Any, backend: FastBackend) -> None:
    backend.allowed.clear()
    ended: list[int] = []

    async def rollout(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        ended.append(scenario["number"])
        return pair()

    small = PipelineRuntimeConfig(num_rollout_workers=2, min_batch_size=1, max_batch_size=1, queue_maxsize=3)
    trainer = made(model, backend, rollout, pipeline=small, max_steps=2, max_steps_off_policy=None)
    training = asyncio.create_task(trainer.train())
    await asyncio.wait_for(backend.training.wait(), DEADLINE_S)
    await until(lambda: len(ended) == 1 + 3 + 2)
    await turns()
    assert len(ended) == 6, "one is trained, three are queued, two workers wait"
    trainer.apply_pipeline_settings(small.model_copy(update={"queue_maxsize": 5}))
    await until(lambda: len(ended) == 8)
    backend.allowed.set()
    await asyncio.wait_for(training, DEADLINE_S)


@pytest.mark.parametrize(
    ("moving", "kept"), [({"kl_penalty_step_lag": 2}, [3, 4, 5]), ({"kl_penalty_sync_steps": 4}, [4, 5])]
)
async def test_the_steps_that_penalties_compare_with_are_kept(
    model: Any, backend: FastBackend, moving: dict[str, Any], kept: list[int]
) -> None:
    async def rollout(*_: Any) -> art.TrajectoryGroup:
        return pair()

    await made(
        model,
        backend,
        rollout,
        max_steps=5,
        max_batch_size=4,
        checkpoint_retention_strategy=keep_recent_and_top(recent=0, top=0),
        kl_penalty_coef=0.1,
        **moving,
    ).train()
    assert backend.checkpoints == kept
    assert moving.items() <= backend.calls[0].items()


@pytest.mark.parametrize("metric", ["reward/val", "val/reward"])
@pytest.mark.parametrize("logged", ["reward/val", "val/reward"])
def test_a_metric_of_a_split_has_two_spellings(metric: str, logged: str) -> None:
    known = [CheckpointInfo(step=step, metrics={logged: -step}) for step in (1, 2, 3)]
    context = CheckpointRetentionContext(current_step=4, checkpoints=known)
    assert keep_recent_and_top(recent=0, top=1, metric=metric)(context) == {1}
