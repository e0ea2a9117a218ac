# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.retrying import retry as retry
from art.tracking.folders import get_model_step as get_model_step
from art.trajectories import format_message as format_message
from art_extensions.compat.call_decorators import limit_concurrency as limit_concurrency
from art_extensions.compat.call_decorators import log_http_errors as log_http_errors
from art_extensions.compat.provenance import record_provenance as record_provenance
from art_extensions.sft_data.datasets import iterate_dataset as iterate_dataset

__all__ = ["format_message", "get_model_step", "iterate_dataset", "limit_concurrency", "log_http_errors", "record_provenance", "retry"]

