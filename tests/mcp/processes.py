"""Whether processes have ended."""

from __future__ import annotations

import asyncio
import os


async def gone(pid: int) -> bool:
    """Whether a process ends within a few seconds."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        await asyncio.sleep(0.05)
    return False
