"""Training that does not wait: rollouts, training steps and evaluations side by side."""

from __future__ import annotations

from art.pipeline_trainer.retention import (
    CHECKPOINT_CREATED_AT_METRIC,
    CHECKPOINT_EVAL_COMPLETED_METRIC,
    CHECKPOINT_EVAL_FAILED_METRIC,
    CHECKPOINT_SAVED_METRIC,
    CheckpointInfo,
    CheckpointRetentionContext,
    CheckpointRetentionStrategy,
    keep_recent_and_top,
)
from art.pipeline_trainer.rollout import EvalFn, RolloutFn, ScenarioT, SingleRolloutFn, make_group_rollout_fn
from art.pipeline_trainer.settings import PipelineRuntimeConfig
from art.pipeline_trainer.status import Status, StatusReporter
from art.pipeline_trainer.trainer import PipelineTrainer

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
