"""What a task runs in: one face for the process jail and for the containers of Harbor's own classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

OUTPUT_BYTES = 1 << 20
"""What is kept of the output of a command: the first half and the last half of it."""


class CutOutput:
    """The output of a command, part by part: of a long one the first half and the last half are kept."""

    def __init__(self) -> None:
        self._head, self._tail, self._left_out = b"", b"", 0

    def add(self, part: bytes) -> None:
        half = OUTPUT_BYTES // 2
        room = half - len(self._head)
        self._head, self._tail = self._head + part[:room], self._tail + part[room:]
        if (excess := len(self._tail) - half) > 0:
            self._tail, self._left_out = self._tail[excess:], self._left_out + excess

    def text(self) -> str:
        """Returns what is kept, with a line where bytes are left out."""
        between = f"\n... {self._left_out} bytes are left out ...\n".encode() if self._left_out else b""
        return (self._head + between + self._tail).decode("utf-8", "replace")


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """The end of a command."""

    code: int
    """Its exit status."""
    output: str
    """What it wrote to stdout and stderr."""
    timed_out: bool = False


class TaskSandbox(Protocol):
    """A sandbox of one rollout. Its commands share files, not processes. Nothing waits without a deadline."""

    async def start(self) -> None:
        """Makes it as the task's `environment` folder says. Raises: EnvironmentFailedError with the line that
        failed.
        """
        ...

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        variables: Mapping[str, str] | None = None,
        workdir: str | None = None,
    ) -> CommandResult:
        """Runs a shell command. workdir: None is the task's own. Raises: EnvironmentFailedError where the
        sandbox itself fails.
        """
        ...

    async def upload(self, folder: Path, target: str) -> None:
        """Copies what is in a folder into one of the sandbox, which is made. Raises as `run`."""
        ...

    async def close(self) -> None:
        """Ends it, and removes what it wrote."""
        ...
