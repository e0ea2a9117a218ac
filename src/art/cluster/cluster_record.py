"""What the server knows of its cluster, in a file beside its own: the pages read files alone.

{data_dir}/server/cluster.json      what `/health` says of the cluster, and when it was written
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from art.process.files import write_whole
from art.process.running_server import CLUSTER_FILE

_log = logging.getLogger(__name__)
_EVERY_S = 2.0


class ClusterRecord:
    """Writes the file every two seconds until it is closed; then the file is gone."""

    def __init__(self, server_dir: Path, read_health: Callable[[], Mapping[str, Any]]) -> None:
        self._path = server_dir / CLUSTER_FILE
        self._read_health = read_health
        self._task = asyncio.create_task(self._write_on())

    async def close(self) -> None:
        """Ends the writing and removes the file."""
        self._task.cancel()
        await asyncio.wait([self._task])
        with contextlib.suppress(OSError):  # a file that stays is older than its server, and not shown
            await asyncio.to_thread(self._path.unlink, missing_ok=True)

    async def _write_on(self) -> None:
        failing = False
        while True:
            text = json.dumps({**self._read_health(), "written_at": time.time()})
            try:
                await asyncio.to_thread(write_whole, self._path, text, mode=0o600, durable=False)
                failing = False
            except OSError as error:
                if not failing:  # once, and not every two seconds
                    _log.warning(
                        "the pages do not see the cluster: %s cannot be written: %s", self._path, error
                    )
                failing = True
            await asyncio.sleep(_EVERY_S)
