"""SkyPilot for `art runtime install skypilot`: a runtime of the core (`art.extensions.ProgramRuntime`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from art.extensions import Tell
from art_extensions.launch.environment import TESTED, default_folder, find_skypilot, install_skypilot


class SkyPilotRuntime:
    """The environment of SkyPilot."""

    def install(self, folder: Path | None, device: str, clouds: Sequence[str], tell: Tell) -> str:
        """See `ProgramRuntime.install`. clouds: those that SkyPilot is to know."""
        place = folder or default_folder()
        return f"SkyPilot {install_skypilot(place, clouds, tell)} is in {place}"

    def folder(self) -> Path:
        """See `ProgramRuntime.folder`."""
        return default_folder()

    def describe(self, folder: Path | None) -> Sequence[str]:
        """See `ProgramRuntime.describe`."""
        python, found = asyncio.run(find_skypilot(folder))
        return f"tested version: SkyPilot {TESTED}", f"{python.parents[1]}: SkyPilot {found}"


SKYPILOT = SkyPilotRuntime()
