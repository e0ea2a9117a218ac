"""How long a transfer may take, how often it is tried, how much of it happens at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StorageLimits:
    """total_s: a whole push or pull. attempts: tries of one file, with a pause of `pause_s` that doubles.

    parallel: files at once. connect_s, read_s: of one request to S3, which `botocore` tries `requests` times.
    """

    total_s: float = 6 * 3600.0
    attempts: int = 3
    pause_s: float = 0.5
    parallel: int = 4
    connect_s: float = 10.0
    read_s: float = 60.0
    requests: int = 3
