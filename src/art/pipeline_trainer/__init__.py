"""Asynchronous training: which checkpoints are kept, and how rollouts are described. The trainer itself is
not built yet.
"""

from __future__ import annotations

from typing import Any

from art.pipeline_trainer.retention import (
    CHECKPOINT_CREATED_AT_METRIC,
    CHECKPOINT_EVAL_COMPLETED_METRIC,
    CHECKPOINT_SAVED_METRIC,
    CheckpointInfo,
    CheckpointRetentionContext,
    CheckpointRetentionStrategy,
    keep_recent_and_top,
)
from art.pipeline_trainer.rollout import EvalFn, RolloutFn, ScenarioT, SingleRolloutFn, make_group_rollout_fn
from art.unbuilt import Unbuilt

PipelineTrainer: Any = Unbuilt(
    "art.pipeline_trainer.PipelineTrainer",
    "loop over `art.trajectory_group_batches(..., max_concurrent_batches=...)`, whose rollouts go on while "
    "`backend.train` runs",
)
StatusReporter: Any = Unbuilt(
    "art.pipeline_trainer.StatusReporter", "`model.log` and `history.jsonl` tell how a run goes"
)

__all__ = [
    "CHECKPOINT_CREATED_AT_METRIC",
    "CHECKPOINT_EVAL_COMPLETED_METRIC",
    "CHECKPOINT_SAVED_METRIC",
    "CheckpointInfo",
    "CheckpointRetentionContext",
    "CheckpointRetentionStrategy",
    "EvalFn",
    "PipelineTrainer",
    "RolloutFn",
    "ScenarioT",
    "SingleRolloutFn",
    "StatusReporter",
    "keep_recent_and_top",
    "make_group_rollout_fn",
]
