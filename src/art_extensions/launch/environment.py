"""The environment that SkyPilot is installed in: made, and found.

SkyPilot brings about a hundred packages and takes seconds to import, so our own environment never has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from art.errors import ConfigurationError
from art.process.runtimes import (
    ask_versions,
    find_python,
    installed_versions,
    installing,
    make_environment,
    pip,
    python_of,
    runtime_folder,
)

TESTED = "0.14.1"
"""What `art runtime install skypilot` takes, and what the tests run with."""


def default_folder() -> Path:
    """Returns the folder of `art runtime install skypilot`."""
    return runtime_folder("skypilot", TESTED)


def install_skypilot(folder: Path, clouds: Sequence[str], tell: Callable[[str], object]) -> str:
    """Make the environment, or add clouds to it; returns the version. Two at once wait for each other.

    clouds: extras of SkyPilot, such as `aws` or `runpod`. Raises ConfigurationError, with pip's last lines.
    """
    unknown = [cloud for cloud in clouds if not re.fullmatch(r"[a-z0-9-]+", cloud)]
    if unknown:
        raise ConfigurationError(f"cloud {unknown[0]!r} is no extra of SkyPilot; use a name such as aws")
    with installing(folder) as folder:
        python = python_of(folder)
        if not python.is_file():
            tell(f"making the environment {folder}")
            make_environment(folder)
        package = f"skypilot[{','.join(clouds)}]=={TESTED}" if clouds else f"skypilot=={TESTED}"
        tell(f"installing {package} (about 450 MB)")
        pip(python, "install", "--no-compile", package, problem=f"pip could not install {package}")
        return installed_versions(python, "skypilot")["skypilot"]


async def find_skypilot(environment: Path | None) -> tuple[Path, str]:
    """Returns the interpreter and the version of SkyPilot. Raises ConfigurationError with the remedy."""
    folder = environment or default_folder()
    remedy = "run `art runtime install skypilot`" + ("" if environment is None else f" --at {folder}")
    python = find_python(folder, "SkyPilot", remedy)
    version = (await ask_versions(python, "skypilot")).get("skypilot")
    if version is None:
        raise ConfigurationError(f"SkyPilot is not installed in {str(folder)!r}; {remedy}")
    return python, version
