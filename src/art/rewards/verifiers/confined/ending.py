"""Why a process ended."""

from __future__ import annotations

import signal
from typing import Any


def used_up(code: int, usage: Any, cpu_s: int) -> bool:
    """Whether it was killed for its CPU time, which the kernel counts in ticks: more roughly than in
    `usage`.
    """
    return code == -signal.SIGKILL and usage.ru_utime + usage.ru_stime >= 0.8 * cpu_s
