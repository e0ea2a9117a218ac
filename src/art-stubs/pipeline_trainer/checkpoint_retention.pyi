# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.pipeline_trainer.retention import CHECKPOINT_CREATED_AT_METRIC as CHECKPOINT_CREATED_AT_METRIC
from art.pipeline_trainer.retention import CHECKPOINT_EVAL_COMPLETED_METRIC as CHECKPOINT_EVAL_COMPLETED_METRIC
from art.pipeline_trainer.retention import CHECKPOINT_SAVED_METRIC as CHECKPOINT_SAVED_METRIC
from art.pipeline_trainer.retention import CheckpointInfo as CheckpointInfo
from art.pipeline_trainer.retention import CheckpointRetentionContext as CheckpointRetentionContext
from art.pipeline_trainer.retention import CheckpointRetentionStrategy as CheckpointRetentionStrategy
from art.pipeline_trainer.retention import keep_recent_and_top as keep_recent_and_top

__all__ = ["CHECKPOINT_CREATED_AT_METRIC", "CHECKPOINT_EVAL_COMPLETED_METRIC", "CHECKPOINT_SAVED_METRIC", "CheckpointInfo", "CheckpointRetentionContext", "CheckpointRetentionStrategy", "keep_recent_and_top"]

