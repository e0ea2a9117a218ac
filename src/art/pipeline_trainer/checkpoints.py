"""Deleting checkpoints by a strategy, with what the log knows of each."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from art.folders import get_model_dir, get_step_checkpoint_dir
from art.pipeline_trainer.retention import (
    CHECKPOINT_CREATED_AT_METRIC,
    CheckpointInfo,
    CheckpointRetentionContext,
    CheckpointRetentionStrategy,
)
from art.pipeline_trainer.settings import PipelineOptions, is_eval_step
from art.tracking.history import read_rows

_log = logging.getLogger(__name__)


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
    kept = {current, *waiting}
    known = _metrics(Path(get_model_dir(model)) / "history.jsonl")
    eligible = [_info(model, step, settings, known.get(step, {})) for step in steps if step not in kept]
    kept |= set(strategy(CheckpointRetentionContext(current_step=current, checkpoints=eligible)))
    if set(steps) <= kept:
        return []
    deleted: list[int] = await backend.delete_checkpoints(model, sorted(kept))
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


def _metrics(history: Path) -> dict[int, dict[str, float]]:
    """The numbers of each step; the later of equal names."""
    known: dict[int, dict[str, float]] = {}
    for row in read_rows(history):
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
        known.setdefault(int(row.get("step", -1)), {}).update(
            {name: value for name, value in numbers.items() if math.isfinite(value)}
        )
    return known
