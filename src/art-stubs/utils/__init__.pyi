# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.concurrency import limit_concurrency as limit_concurrency
from art.datasets.iterate import iterate_dataset as iterate_dataset
from art.folders import get_model_step as get_model_step
from art.http_errors import log_http_errors as log_http_errors
from art.message_text import format_message as format_message
from art.retrying import retry as retry
from art.tracking.provenance import record_provenance as record_provenance

__all__ = ["format_message", "get_model_step", "iterate_dataset", "limit_concurrency", "log_http_errors", "record_provenance", "retry"]

