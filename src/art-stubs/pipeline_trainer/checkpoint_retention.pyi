# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.pipeline.settings import CHECKPOINT_CREATED_AT_METRIC as CHECKPOINT_CREATED_AT_METRIC
from art_extensions.pipeline.settings import CHECKPOINT_EVAL_COMPLETED_METRIC as CHECKPOINT_EVAL_COMPLETED_METRIC
from art_extensions.pipeline.settings import CHECKPOINT_SAVED_METRIC as CHECKPOINT_SAVED_METRIC
from art_extensions.pipeline.settings import CheckpointInfo as CheckpointInfo
from art_extensions.pipeline.settings import CheckpointRetentionContext as CheckpointRetentionContext
from art_extensions.pipeline.settings import CheckpointRetentionStrategy as CheckpointRetentionStrategy
from art_extensions.pipeline.settings import keep_recent_and_top as keep_recent_and_top

__all__ = ["CHECKPOINT_CREATED_AT_METRIC", "CHECKPOINT_EVAL_COMPLETED_METRIC", "CHECKPOINT_SAVED_METRIC", "CheckpointInfo", "CheckpointRetentionContext", "CheckpointRetentionStrategy", "keep_recent_and_top"]

