"""What a server said, in the error: the import path that users know."""

from __future__ import annotations

from art.http_errors import log_http_errors

__all__ = ["log_http_errors"]
