"""Environments of programs that our own environment never imports: made, and asked what they have.

`art runtime install` makes them, one for each version, shared by all projects of a user.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from art.errors import ConfigurationError
from art.process.files import take_lock

LOCK_SECONDS = 3600.0
PIP_SECONDS = 3600.0
ASK_SECONDS = 60.0
END_SECONDS = 5.0
LAST_LINES = 12
_VERSIONS = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def user_cache() -> Path:
    """Returns the folder of what is made once for all projects of a user."""
    return Path.home() / ".cache" / "art"


def runtime_folder(name: str, version: str) -> Path:
    """Returns where `art runtime install` makes the environment of a program."""
    return user_cache() / "runtime" / f"{name}-{version}"


def python_of(environment: Path) -> Path:
    """Returns the interpreter of an environment: its folder, or itself."""
    environment = environment.expanduser()
    if environment.is_file():
        return environment.absolute()  # a link into the system's Python must stay what it is
    inside = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
    return environment.absolute().joinpath(*inside)


def find_python(environment: Path, program: str, remedy: str) -> Path:
    """Returns the interpreter of an environment that must be there. Raises ConfigurationError."""
    python = python_of(environment)
    if not python.is_file():
        raise ConfigurationError(f"no environment for {program} at {str(environment)!r}; {remedy}")
    return python


@contextlib.contextmanager
def installing(folder: Path) -> Iterator[Path]:
    """Yields the absolute folder. Two installations into one wait for each other.

    Raises ConfigurationError when the other one does not end.
    """
    folder = folder.expanduser().absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = take_lock(folder.with_name(f"{folder.name}.lock"), patience=LOCK_SECONDS)
    if lock is None:
        raise ConfigurationError(
            f"another installation into {str(folder)!r} runs for {LOCK_SECONDS:g} s already"
        )
    try:
        yield folder
    finally:
        os.close(lock)


def make_environment(folder: Path) -> Path:
    """Make an environment with this Python; returns its interpreter. Raises ConfigurationError."""
    _run([sys.executable, "-m", "venv", str(folder)], "the environment could not be made", PIP_SECONDS)
    return python_of(folder)


def pip(python: Path, *arguments: str, problem: str) -> None:
    """Run pip in an environment. Raises ConfigurationError: the problem, and pip's last lines."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    _run(command, problem, PIP_SECONDS)


def run_python(python: Path, program: str, *arguments: str, problem: str, seconds: float) -> str:
    """Returns the output of a short program in another environment. Blocks. Raises ConfigurationError."""
    return _run([str(python), "-I", "-c", program, *arguments], problem, seconds)


def installed_versions(python: Path, *names: str, seconds: float = ASK_SECONDS) -> dict[str, str]:
    """Returns the versions of packages that an environment must have. Blocks. Raises ConfigurationError."""
    output = run_python(python, _VERSIONS, *names, problem="its versions cannot be read", seconds=seconds)
    found: dict[str, str] = json.loads(output)
    if missing := [name for name in names if name not in found]:
        raise ConfigurationError(f"{python} does not have the package {missing[0]!r} after the installation")
    return found


async def ask_versions(python: Path, *names: str) -> dict[str, str]:
    """Returns the versions of those packages that an environment has. Raises ConfigurationError."""
    return dict(json.loads(await ask_python(python, _VERSIONS, *names)))


async def ask_python(python: Path, program: str, *arguments: str, seconds: float = ASK_SECONDS) -> str:
    """Returns the output of a short program in another environment. Raises ConfigurationError."""
    try:
        code, out, err = await complete_command([str(python), "-I", "-c", program, *arguments], seconds)
    except TimeoutError as error:
        raise ConfigurationError(f"{python} did not answer within {seconds:g} s") from error
    if code != 0:
        raise ConfigurationError(f"{python} cannot be asked what it has: {' | '.join(err.splitlines()[-3:])}")
    return out


async def complete_command(command: Sequence[str], seconds: float) -> tuple[int | None, str, str]:
    """Returns the exit code, the output and the errors of a command that has no input. One that does not
    end is killed.

    Raises FileNotFoundError, TimeoutError.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            await end_process(process)
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace").strip()


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kills a process that has not ended, and reads its pipes to their ends: nothing of it is left."""
    if process.returncode is None:
        process.kill()
    with contextlib.suppress(TimeoutError):  # a pipe that somebody else keeps open
        async with asyncio.timeout(END_SECONDS):
            await process.communicate()


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
