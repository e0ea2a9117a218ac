"""Unix time for what expires: leases, sessions, what is kept for a while."""

from __future__ import annotations

import time

_BEGUN_AT = time.time() - time.monotonic()
"""When the monotonic clock was 0, as the machine's clock was when this was first imported."""


def steady_time() -> float:
    """Returns Unix seconds that go on evenly in this process, though the machine's clock be set meanwhile: no
    lease ends early, and none lasts longer.
    """
    return _BEGUN_AT + time.monotonic()
