"""Training that does not wait: rollouts, training steps and evaluations side by side."""

from __future__ import annotations

from art_extensions.pipeline.rollout_workers import (
    EvalFn,
    RolloutFn,
    ScenarioT,
    SingleRolloutFn,
    make_group_rollout_fn,
)
from art_extensions.pipeline.settings import (
    CHECKPOINT_CREATED_AT_METRIC,
    CHECKPOINT_EVAL_COMPLETED_METRIC,
    CHECKPOINT_EVAL_FAILED_METRIC,
    CHECKPOINT_SAVED_METRIC,
    CheckpointInfo,
    CheckpointRetentionContext,
    CheckpointRetentionStrategy,
    PipelineRuntimeConfig,
    keep_recent_and_top,
)
from art_extensions.pipeline.status import Status, StatusReporter
from art_extensions.pipeline.trainer import PipelineTrainer

__all__ = [
    "CHECKPOINT_CREATED_AT_METRIC",
    "CHECKPOINT_EVAL_COMPLETED_METRIC",
    "CHECKPOINT_EVAL_FAILED_METRIC",
    "CHECKPOINT_SAVED_METRIC",
    "CheckpointInfo",
    "CheckpointRetentionContext",
    "CheckpointRetentionStrategy",
    "EvalFn",
    "PipelineRuntimeConfig",
    "PipelineTrainer",
    "RolloutFn",
    "ScenarioT",
    "SingleRolloutFn",
    "Status",
    "StatusReporter",
    "keep_recent_and_top",
    "make_group_rollout_fn",
]
