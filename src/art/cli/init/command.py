"""Write the skeleton into a folder, file by file, never over anything that is there."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import typer

from art.errors import ConfigurationError

FILES = {
    "README.md": "README.md",
    "scenarios.py": "scenarios.py",
    "rollout.py": "rollout.py",
    "train.py": "train.py",
    "gitignore": ".gitignore",
}
"""Name in the package -> name in the project."""
NANO_RATE = "2e-3"
"""A nano model of 170,000 parameters takes and needs a larger rate than a real one."""
RATE = "1e-5"


def create_project(folder: Path, *, base_model: str, project: str | None = None) -> list[Path]:
    """Write the skeleton; returns its files.

    Raises ConfigurationError when one of them is there already (nothing is written), or when the folder's
    name cannot be a project's.
    """
    name = project or folder.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ConfigurationError(
            f"{name!r} cannot be a project's name (letters, digits, '.', '_' and '-'): "
            "give one with --project"
        )
    if there := [str(folder / target) for target in FILES.values() if (folder / target).exists()]:
        raise ConfigurationError(f"{', '.join(there)}: there already; nothing was written")
    rate = NANO_RATE if base_model.startswith("art/") else RATE
    words = {"__PROJECT__": name, "__BASE_MODEL__": base_model, "__LEARNING_RATE__": rate}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for source, target in FILES.items():
        text = (files("art.cli.init") / "skeleton" / source).read_text(encoding="utf-8")
        for word, value in words.items():
            text = text.replace(word, value)
        (folder / target).write_text(text, encoding="utf-8")
        written.append(folder / target)
    return written


def init_project(folder: Path, *, base_model: str, project: str | None) -> int:
    """The verb: writes, says what was written and what to do next; returns the exit code."""
    try:
        written = create_project(folder, base_model=base_model, project=project)
    except ConfigurationError as error:
        typer.echo(str(error), err=True)
        return 2
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo(f"\nNext:\n  cd {folder}\n  python train.py")
    return 0
