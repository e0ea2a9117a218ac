"""What happens to a checkpoint once it is made: it is evaluated beside the training, and kept or deleted.

An evaluation stays on the adapter of its own step, whatever is trained meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from art.tracking.folders import ModelPaths, get_model_dir, get_step_checkpoint_dir
from art.tracking.model_files import read_history
from art.trajectories import TrajectoryGroup
from art_extensions.pipeline.pipeline_state import PipelineState
from art_extensions.pipeline.rollout_workers import EvalFn, Evaluated
from art_extensions.pipeline.settings import (
    CHECKPOINT_CREATED_AT_METRIC,
    CHECKPOINT_EVAL_COMPLETED_METRIC,
    CHECKPOINT_EVAL_FAILED_METRIC,
    CheckpointInfo,
    CheckpointRetentionContext,
    CheckpointRetentionStrategy,
    PipelineOptions,
    is_eval_step,
)

_log = logging.getLogger("art.runs.pipeline")  # below `art`, so that `show_log` shows its lines

CHECKPOINT, EVAL_COMPLETED = CHECKPOINT_EVAL_COMPLETED_METRIC.split("/")
EVAL_FAILED = CHECKPOINT_EVAL_FAILED_METRIC.split("/")[1]


class Evaluations:
    """Runs `eval_fn` for one step after the other, in their order.

    One that fails is tried once more: after the next one, or at the end of the run, when what it asks may be
    well again. One that fails twice is given up, and told of in its row, in the state and at the end.
    """

    def __init__(
        self,
        model: Any,
        backend: Any,
        eval_fn: EvalFn[Any] | None,
        config: Any,
        *,
        state: PipelineState,
        save: Callable[[], Awaitable[None]],
    ) -> None:
        """save: writes the state down."""
        self._model, self._backend, self._eval_fn, self._config = model, backend, eval_fn, config
        self._state, self._save = state, save
        self._queue: asyncio.Queue[int | None] = asyncio.Queue()
        self._again: list[int] = []
        self._tried: set[int] = set()
        """Steps whose evaluation has failed once."""
        self._written: set[tuple[int, str]] = set()
        """Steps and splits that are logged."""

    def schedule(self, step: int) -> None:
        """Evaluate a step; its checkpoint stays until that is done."""
        if self._eval_fn is None or step in self._state.completed_evals:
            self._state.waiting_evals.discard(step)
            return
        self._state.waiting_evals.add(step)
        self._queue.put_nowait(step)

    def end(self) -> None:
        """No more steps come."""
        self._queue.put_nowait(None)

    async def run(self) -> None:
        """Runs until `end`, and until all scheduled evaluations are done."""
        while (step := await self._queue.get()) is not None:
            again, self._again = self._again, []
            for one in [step, *again]:
                await self._evaluate(one)
        for one in self._again:
            await self._evaluate(one)
        if failed := sorted(self._state.failed_evals):
            _log.error(
                "%s has no evaluation of the steps %s: they failed twice, with the errors logged before",
                self._model.name,
                failed,
            )

    async def _evaluate(self, step: int) -> None:
        try:
            await self._evaluate_and_log(step)
        except Exception as error:  # noqa: BLE001 - the user's code: a failed evaluation must not end the training
            await self._failed(step, error)
            return
        await self._model.log(split=CHECKPOINT, metrics={EVAL_COMPLETED: 1.0}, step=step)
        self._state.eval_done(step)
        await self._save()

    async def _evaluate_and_log(self, step: int) -> None:
        assert self._eval_fn is not None
        builder = self._model.metrics_builder("eval")
        context = builder.activate()
        try:
            with builder.measure("time/step_eval_s"):
                async with self._lease(step):
                    found = await self._eval_fn(self._model, step, self._config)
            for split, trajectories in (found if isinstance(found, Mapping) else {"val": found}).items():
                if (step, split) not in self._written:
                    await self._model.log(_one_kind(trajectories), split=split, step=step)
                    self._written.add((step, split))
        finally:
            context.var.reset(context)

    async def _failed(self, step: int, error: Exception) -> None:
        last = step in self._tried
        then = "the second time: given up" if last else "tried once more later"
        _log.error("the evaluation of step %d failed (%s): %r", step, then, error, exc_info=error)
        if not last:
            self._tried.add(step)
            self._again.append(step)
            return
        await self._model.log(split=CHECKPOINT, metrics={EVAL_FAILED: 1.0}, step=step)
        self._state.eval_failed(step)
        await self._save()

    def _lease(self, step: int) -> AbstractAsyncContextManager[None]:
        """Leases the step: inside the block, the model's name is that of the step."""
        lease = getattr(self._backend, "adapter_lease", None)
        lease_block: AbstractAsyncContextManager[None] = (
            contextlib.nullcontext() if lease is None else lease(self._model, step)
        )
        return lease_block


def _one_kind(items: Evaluated) -> list[Any]:
    """Groups as they are; loose trajectories among them become a group of their own."""
    groups = [item for item in items if isinstance(item, TrajectoryGroup)]
    loose = [item for item in items if not isinstance(item, TrajectoryGroup)]
    return [*groups, TrajectoryGroup(loose)] if groups and loose else list(items)


async def apply_retention(
    model: Any,
    backend: Any,
    strategy: CheckpointRetentionStrategy,
    settings: PipelineOptions,
    *,
    current: int,
    waiting: Collection[int],
) -> list[int]:
    """Delete what the strategy does not keep; returns the deleted steps.

    The current step, those that wait for an evaluation and those on lease stay, and the strategy is not
    asked about them (leases: the backend keeps those).
    """
    steps = await backend.checkpoint_steps(model)
    retained = {current, *waiting}
    known = _metrics(ModelPaths.of_model(model).history, steps)
    eligible = [_info(model, step, settings, known.get(step, {})) for step in steps if step not in retained]
    retained |= set(strategy(CheckpointRetentionContext(current_step=current, checkpoints=eligible)))
    if set(steps) <= retained:
        return []
    deleted: list[int] = await backend.delete_checkpoints(model, sorted(retained))
    if deleted:
        _log.info("%s: checkpoints deleted: %s", model.name, deleted)
    return deleted


def _info(model: Any, step: int, settings: PipelineOptions, metrics: dict[str, float]) -> CheckpointInfo:
    folder = Path(get_step_checkpoint_dir(get_model_dir(model), step))
    return CheckpointInfo(
        step=step,
        path=str(folder) if folder.is_dir() else None,
        created_at=metrics.get(CHECKPOINT_CREATED_AT_METRIC),
        is_eval_step=is_eval_step(settings, step),
        metrics=metrics,
    )


def _metrics(history: Path, steps: Collection[int]) -> dict[int, dict[str, float]]:
    """The numbers of each of these steps; the later of equal names."""
    known: dict[int, dict[str, float]] = {}
    for row in read_history(history, steps=steps):
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
        known.setdefault(int(row.get("step", -1)), {}).update(
            {name: value for name, value in numbers.items() if math.isfinite(value)}
        )
    return known
