"""The local stand-in of a cloud, for tests: an environment whose interpreter leads to it."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SKYPILOT = ROOT / ".venv-skypilot"
HERE = Path(__file__).parent
VERSION = version("agent-reinforcement-trainer")
TOOLS = ("ssh", "sshd", "ssh-keygen", "rsync")

EVERYTHING = bool(os.environ.get("ART_TEST_EVERYTHING"))
needs_skypilot = pytest.mark.skipif(
    not (SKYPILOT / "bin" / "python").exists() and not EVERYTHING,
    reason="no .venv-skypilot; `make .venv-skypilot/.installed` makes it",
)


def missing_tools() -> list[str]:
    return [name for name in TOOLS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]


needs_ssh = pytest.mark.skipif(
    bool(missing_tools()) and not EVERYTHING,
    reason=f"{', '.join(missing_tools())} missing; see tests/install_programs.sh",
)


def stand_in(folder: Path) -> Path:
    """Makes an environment of SkyPilot whose clouds are processes of this machine; returns its folder."""
    place = folder / "environment" / "bin"
    place.mkdir(parents=True)
    (folder / "boxes").mkdir()
    real, provider = SKYPILOT / "bin" / "python", HERE / "programs" / "local_provider.py"
    (place / "python").write_text(
        f"#!/bin/sh\n"
        f'if [ "$2" = -c ]; then exec {real} "$@"; fi\n'
        f'exec {real} -I {provider} {folder / "boxes"} "$2"\n'
    )
    (place / "python").chmod(0o755)
    return place.parent
