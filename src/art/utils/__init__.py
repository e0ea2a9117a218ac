"""Import paths that users know; the code lives in its rooms."""

from __future__ import annotations

# Functions must win over the modules of the same names, whichever is imported first.
from art.utils.format_message import format_message
from art.utils.get_model_step import get_model_step
from art.utils.iterate_dataset import iterate_dataset
from art.utils.limit_concurrency import limit_concurrency
from art.utils.log_http_errors import log_http_errors
from art.utils.record_provenance import record_provenance
from art.utils.retry import retry

__all__ = [
    "format_message",
    "get_model_step",
    "iterate_dataset",
    "limit_concurrency",
    "log_http_errors",
    "record_provenance",
    "retry",
]
