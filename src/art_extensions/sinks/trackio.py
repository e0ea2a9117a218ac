"""Rows in Trackio's local database (`TRACKIO_DIR`): `trackio show --project ...` shows them.

Written by Trackio's own storage. `trackio.init` would start a server and a run that the whole process
shares; here two models report side by side, and nothing is sent anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trackio.sqlite_storage import SQLiteStorage

from art.tracking.sinks.sink import ReportedRun, TableRow, flat, safe_name
from art.wire.quoting import writable

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_NAME = 100


class TrackioSink:
    """One run in the database of its project."""

    is_local = True

    def open(self, run: ReportedRun, config: Mapping[str, Any]) -> None:
        """Makes the project's database if there is none. The run begins with its first row."""
        self._project = writable(f"{run.entity}-{run.project}" if run.entity else run.project)
        self._name, self._id = writable(run.name), run.digest
        SQLiteStorage.validate_project_name(self._project)
        SQLiteStorage.init_db(self._project)
        # A row's config replaces the stored one: what an earlier process said stays.
        earlier = SQLiteStorage.get_run_config(self._project, self._name, run_id=self._id) or {}
        self._config = {**earlier, **flat(config)}

    def config(self, values: Mapping[str, Any]) -> None:
        """Takes the config, which goes with the next row."""
        self._config |= flat(values)

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Stores one row, in one transaction."""
        self._store(step, {writable(name): value for name, value in row.items()})

    def table(self, name: str, step: int, rows: Sequence[TableRow]) -> None:
        """Stores conversations as a table of Trackio."""
        values = [
            {"group": row.group, "place": row.place, "reward": row.reward, "text": row.text} for row in rows
        ]
        self._store(step, {writable(name): {"_type": "trackio.table", "_value": values}})

    def checkpoint(self, step: int, files: Sequence[Path]) -> None:
        """Stores the adapter of a step as a version of the run's artifact, with the alias `step7`."""
        from trackio.artifact import Artifact  # not in the first versions that this file works with

        facts = {"step": step, "config": self._config}
        adapter = Artifact(safe_name(self._name, _UNSAFE, _LONGEST_NAME), "model", metadata=facts)
        for file in files:
            adapter.add_file(file)
        SQLiteStorage.commit_artifact_version(
            project=self._project,
            name=adapter.name,
            type=adapter.type,
            description=None,
            manifest=adapter._build_manifest(self._project),
            metadata=adapter.metadata,
            aliases=[f"step{step}"],
            run_name=self._name,
            run_id=self._id,
        )

    def close(self) -> None:
        """Does nothing: each row was stored when it came."""

    def _store(self, step: int, values: dict[str, Any]) -> None:
        SQLiteStorage.bulk_log(
            self._project, self._name, [values], steps=[step], config=self._config or None, run_id=self._id
        )
