"""Where a model comes from: the import path that users know."""

from __future__ import annotations

from art.tracking.provenance import record_provenance

__all__ = ["record_provenance"]
