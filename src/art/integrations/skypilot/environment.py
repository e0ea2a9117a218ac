"""The environment that SkyPilot is installed in: made, and found.

SkyPilot brings about a hundred packages and takes seconds to import, so our own environment never has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from art.errors import ConfigurationError
from art.process.files import take_lock

TESTED = "0.14.1"
"""What `art runtime install skypilot` takes, and what the tests run with."""
LOCK_SECONDS = 3600.0
PIP_SECONDS = 3600.0
ASK_SECONDS = 60.0
END_SECONDS = 5.0
LAST_LINES = 12
_ASK = "from importlib.metadata import version; print(version('skypilot'))"


def default_folder() -> Path:
    """Returns the folder of `art runtime install skypilot`: one for each version, shared by all projects."""
    return Path.home() / ".cache" / "art" / "runtime" / f"skypilot-{TESTED}"


def interpreter_of(environment: Path) -> Path:
    """Returns the interpreter of an environment."""
    return environment.expanduser().absolute().joinpath("bin", "python")


def install_skypilot(folder: Path, clouds: Sequence[str], tell: Callable[[str], None]) -> str:
    """Make the environment, or add clouds to it; returns the version. Two at once wait for each other.

    clouds: extras of SkyPilot, such as `aws` or `runpod`. Raises ConfigurationError, with pip's last lines.
    """
    unknown = [cloud for cloud in clouds if not re.fullmatch(r"[a-z0-9-]+", cloud)]
    if unknown:
        raise ConfigurationError(f"cloud {unknown[0]!r} is no extra of SkyPilot; use a name such as aws")
    folder = folder.expanduser().absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = take_lock(folder.with_name(f"{folder.name}.lock"), patience=LOCK_SECONDS)
    if lock is None:
        raise ConfigurationError(
            f"another installation into {str(folder)!r} runs for {LOCK_SECONDS:g} s already"
        )
    try:
        python = str(interpreter_of(folder))
        if not Path(python).is_file():
            tell(f"making the environment {folder}")
            _run([sys.executable, "-m", "venv", str(folder)], "the environment could not be made")
        package = f"skypilot[{','.join(clouds)}]=={TESTED}" if clouds else f"skypilot=={TESTED}"
        tell(f"installing {package} (about 450 MB)")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
        _run([*pip, "install", "--no-compile", package], f"pip could not install {package}")
        return _run([python, "-I", "-c", _ASK], "its version cannot be read").strip()
    finally:
        os.close(lock)


def _run(command: list[str], problem: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PIP_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{problem}: nothing happened within {PIP_SECONDS:g} s") from error
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ConfigurationError(f"{problem}; the last lines:\n" + "\n".join(lines[-LAST_LINES:]))
    return done.stdout


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kills a process that has not ended, and reads its pipes to their ends: nothing of it is left."""
    if process.returncode is None:
        process.kill()
    with contextlib.suppress(TimeoutError):  # a pipe that somebody else keeps open
        async with asyncio.timeout(END_SECONDS):
            await process.communicate()


async def find_skypilot(environment: Path | None) -> tuple[Path, str]:
    """Returns the interpreter and the version of SkyPilot. Raises ConfigurationError with the remedy."""
    folder = environment or default_folder()
    python = interpreter_of(folder)
    remedy = "run `art runtime install skypilot`" + ("" if environment is None else f" --at {folder}")
    if not python.is_file():
        raise ConfigurationError(f"no environment for SkyPilot at {str(folder)!r}; {remedy}")
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-I",
        "-c",
        _ASK,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(ASK_SECONDS):
            out, _ = await process.communicate()
    except TimeoutError as error:
        await end_process(process)
        raise ConfigurationError(f"{python} did not answer within {ASK_SECONDS:g} s; {remedy}") from error
    if process.returncode != 0:
        raise ConfigurationError(f"SkyPilot is not installed in {str(folder)!r}; {remedy}")
    return python, out.decode().strip()
