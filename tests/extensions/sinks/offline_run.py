"""Reads what an offline run of W&B wrote: records in the format of LevelDB's log, each a protobuf message."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

HEADER, BLOCK, HEAD = 7, 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Record]:
    """The messages of a `.wandb` file; a damaged one fails to parse."""
    data = path.read_bytes()
    assert data[:4] == b":W&B", data[:8]
    place, parts = HEADER, b""
    while place + HEAD <= len(data):
        room = BLOCK - place % BLOCK
        if room < HEAD:
            place += room
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEAD])
        if kind == 0:
            break
        parts += data[place + HEAD : place + HEAD + length]
        place += HEAD + length
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


class OfflineRun:
    """Name, project, config, axes, rows and models of a run."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent
        self.rows: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.axes: dict[str, str] = {}
        self.artifacts: list[dict[str, Any]] = []
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run = record.run
                self.entity, self.project, self.id, self.name = (
                    run.entity,
                    run.project,
                    run.run_id,
                    run.display_name,
                )
                self._configure(run.config.update)
            elif kind == "config":
                self._configure(record.config.update)
            elif kind == "metric":
                self.axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
            elif kind == "artifact" and record.artifact.type == "model":  # a table is one of another type
                self.artifacts.append(_artifact(record.artifact))
            elif kind == "history":
                items = {
                    item.key or ".".join(item.nested_key): item.value_json for item in record.history.item
                }
                self.rows.append({key: json.loads(value) for key, value in items.items()})

    def _configure(self, updates: Any) -> None:
        for update in updates:
            self.config[update.key or ".".join(update.nested_key)] = json.loads(update.value_json)


def _artifact(logged: Any) -> dict[str, Any]:
    """What was logged, and what the staged files hold that `wandb sync` uploads."""
    staged = {one.path: Path(one.local_path).read_text() for one in logged.manifest.contents}
    facts = {"metadata": json.loads(logged.metadata), "aliases": sorted(logged.aliases), "files": staged}
    return {"name": logged.name, "type": logged.type, **facts}


def offline_runs(folder: Path) -> list[OfflineRun]:
    """All runs under a folder, in the order of their ids."""
    return sorted(
        (OfflineRun(path) for path in folder.rglob("*.wandb")), key=lambda run: (run.project, run.id)
    )
