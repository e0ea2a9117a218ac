"""What the server knows of its cluster, in files beside its own.

{data_dir}/server/cluster.json      what `/health` says of the cluster, and when it was written: for the pages
{data_dir}/server/drained.json      the drained nodes, by Ray's id: for the next server of the folder
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from art.errors import StorageError
from art.process.files import disk_error, write_whole
from art.process.running_server import CLUSTER_FILE

_log = logging.getLogger(__name__)
_EVERY_S = 2.0
_IDS = TypeAdapter(frozenset[str])


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
                await asyncio.to_thread(write_whole, self._path, text, durable=False)
                failing = False
            except OSError as error:
                if not failing:  # once, and not every two seconds
                    _log.warning(
                        "the pages do not see the cluster: %s cannot be written: %s", self._path, error
                    )
                failing = True
            await asyncio.sleep(_EVERY_S)


class DrainedNodes:
    """The ids of nodes that get no more workers. A node that is started again has another id."""

    def __init__(self, server_dir: Path) -> None:
        """Raises StorageError for a file that is none of ours."""
        self._path = server_dir / "drained.json"
        self._ids = _read_ids(self._path)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._ids))

    def change(self, node_id: str, *, drained: bool) -> None:
        """Drain a node, or use it again. Blocks for the disk. Raises DiskError."""
        ids = self._ids | {node_id} if drained else self._ids - {node_id}
        try:
            write_whole(self._path, json.dumps(sorted(ids)) + "\n")
        except OSError as error:
            raise disk_error(error, self._path, "which nodes are drained could not be stored") from error
        self._ids = ids


def _read_ids(path: Path) -> frozenset[str]:
    try:
        return _IDS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return frozenset()
    except ValidationError as error:
        raise StorageError(f"{path} is no list of nodes; remove it to use all nodes") from error
