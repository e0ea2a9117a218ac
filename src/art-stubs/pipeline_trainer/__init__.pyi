# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.pipeline.rollout_workers import EvalFn as EvalFn
from art_extensions.pipeline.rollout_workers import RolloutFn as RolloutFn
from art_extensions.pipeline.rollout_workers import ScenarioT as ScenarioT
from art_extensions.pipeline.rollout_workers import SingleRolloutFn as SingleRolloutFn
from art_extensions.pipeline.rollout_workers import make_group_rollout_fn as make_group_rollout_fn
from art_extensions.pipeline.settings import CHECKPOINT_CREATED_AT_METRIC as CHECKPOINT_CREATED_AT_METRIC
from art_extensions.pipeline.settings import CHECKPOINT_EVAL_COMPLETED_METRIC as CHECKPOINT_EVAL_COMPLETED_METRIC
from art_extensions.pipeline.settings import CHECKPOINT_EVAL_FAILED_METRIC as CHECKPOINT_EVAL_FAILED_METRIC
from art_extensions.pipeline.settings import CHECKPOINT_SAVED_METRIC as CHECKPOINT_SAVED_METRIC
from art_extensions.pipeline.settings import CheckpointInfo as CheckpointInfo
from art_extensions.pipeline.settings import CheckpointRetentionContext as CheckpointRetentionContext
from art_extensions.pipeline.settings import CheckpointRetentionStrategy as CheckpointRetentionStrategy
from art_extensions.pipeline.settings import PipelineRuntimeConfig as PipelineRuntimeConfig
from art_extensions.pipeline.settings import keep_recent_and_top as keep_recent_and_top
from art_extensions.pipeline.status import Status as Status
from art_extensions.pipeline.status import StatusReporter as StatusReporter
from art_extensions.pipeline.trainer import PipelineTrainer as PipelineTrainer

__all__ = ["CHECKPOINT_CREATED_AT_METRIC", "CHECKPOINT_EVAL_COMPLETED_METRIC", "CHECKPOINT_EVAL_FAILED_METRIC", "CHECKPOINT_SAVED_METRIC", "CheckpointInfo", "CheckpointRetentionContext", "CheckpointRetentionStrategy", "EvalFn", "PipelineRuntimeConfig", "PipelineTrainer", "RolloutFn", "ScenarioT", "SingleRolloutFn", "Status", "StatusReporter", "keep_recent_and_top", "make_group_rollout_fn"]

