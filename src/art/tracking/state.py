"""`state.json`: what a program wants to find again, complete at any moment.

The log keeps its sums over the run in the same file under `SUMS`. Programs do not see that entry, and
replacing the state keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art.hidden_key import without_keys
from art.nested import deep_merge
from art.process.durable import write_whole
from art.tracking.folder_lock import locked

SUMS = "_metrics_builder_state"
FILE = "state.json"
_PATIENCE_S = 30.0


def read_state(folder: Path) -> dict[str, Any] | None:
    """The program's state, or None when it has written none."""
    whole = read_json(folder / FILE)
    state = {key: value for key, value in (whole or {}).items() if key != SUMS}
    return None if whole is None or (not state and SUMS in whole) else state


def overwrite_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Replace the program's state. Raises DeadlineError when another program holds the folder's lock."""
    with locked(folder, _PATIENCE_S):
        _write(folder, state)


def merge_state(folder: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Merge into the program's state, dicts key by key; returns the whole. Raises as `overwrite_state`."""
    with locked(folder, _PATIENCE_S):
        merged = deep_merge(read_state(folder) or {}, state)
        _write(folder, merged)
    return merged


def read_sums(folder: Path) -> dict[str, Any]:
    """The log's sums over the run; empty when there are none."""
    sums: dict[str, Any] = (read_json(folder / FILE) or {}).get(SUMS, {})
    return sums


def write_sums(folder: Path, sums: Mapping[str, Any]) -> None:
    """Replace the log's sums, and nothing else. Call it inside `locked(folder)`."""
    write_json(folder / FILE, {**(read_json(folder / FILE) or {}), SUMS: dict(sums)})


def _write(folder: Path, state: Mapping[str, Any]) -> None:
    kept = {key: value for key, value in (read_json(folder / FILE) or {}).items() if key == SUMS}
    write_json(folder / FILE, {**kept, **state})


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file, or None when there is no file."""
    if not path.exists():
        return None
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A reader, or a kill, never meets half a file; only its owner reads it. A key in a model's dump is
    written as null.
    """
    write_whole(path, json.dumps(without_keys(value, names=()), indent=2), mode=0o600)
