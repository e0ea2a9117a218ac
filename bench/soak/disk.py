"""What a data folder holds, by what decides how long it stays."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from art.tracking.folders import ModelPaths, get_output_dir_from_model_properties

LEDGER = "ledger.sqlite"
TOKENS = "tokens.safetensors"


def measure_disk(data_dir: Path, project: str, name: str) -> dict[str, int]:
    """Returns bytes by name, and the numbers of samples, checkpoints and steps with a record of tokens."""
    server = data_dir / "server"
    model = ModelPaths(Path(get_output_dir_from_model_properties(project, name, str(data_dir))))
    steps = _files(model.path / "steps")
    return {
        "ledger": (server / LEDGER).stat().st_size,
        "samples": _count_samples(server / LEDGER),
        "jobs": (server / "jobs.sqlite").stat().st_size,
        "logs": sum(_files(server / "logs").values()),
        "history": model.history.stat().st_size if model.history.exists() else 0,
        "rollouts": sum(size for path, size in steps.items() if path.name != TOKENS),
        "tokens": sum(path.name == TOKENS for path in steps),
        "trajectories": sum(_files(model.trajectories).values()),
        "checkpoints": sum(one.name.isdigit() for one in _folders(model.checkpoints)),
    }


def _count_samples(ledger: Path) -> int:
    with contextlib.closing(sqlite3.connect(ledger)) as file:
        return int(file.execute("SELECT count(*) FROM samples").fetchone()[0])


def _folders(folder: Path) -> list[Path]:
    return [one for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []


def _files(folder: Path) -> dict[Path, int]:
    """Returns the size of each file below a folder; those that end meanwhile are left out."""
    found: dict[Path, int] = {}
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                found[path] = path.stat().st_size
        except FileNotFoundError:
            continue
    return found
