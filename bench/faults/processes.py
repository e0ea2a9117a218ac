"""The processes of a run: which is which, and whether any outlived it."""

from __future__ import annotations

import contextlib
import signal
import time

import psutil

MODULES = {
    "server": "art.server",
    "engine": "art.engine.builtin.worker",
    "trainer": "art.training.worker",
    "rank": "art.training.worker",
}
_HELPER = "fork server of"
"""A process of the tests' own that starts others, and ends with the one that it is named after."""


class RunProcesses:
    """Everything that a program has started, also what is nobody's child any more."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def look(self, root: psutil.Process) -> None:
        """Remember a process and its descendants."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in (root, *root.children(recursive=True)):
                known = self._known.get(one.pid)
                if known is None or known != one:
                    self._known[one.pid] = one

    def find(self, component: str) -> psutil.Process | None:
        """The newest living process of a component; of a trainer's ranks the last one for `rank`, which is
        not the first, and the first one for `trainer`."""
        found = [one for one in list(self._known.values()) if _runs(one, MODULES[component])]
        found.sort(key=lambda one: (one.create_time(), one.pid))
        if component == "rank":
            return found[-1] if len(found) > 1 else None
        if component == "trainer":
            return found[0] if found else None
        return found[-1] if found else None

    def alive(self) -> list[psutil.Process]:
        return [one for one in self._known.values() if is_alive(one)]

    def await_end(self, seconds: float) -> list[str]:
        """Returns the command lines of those that live on after so many seconds."""
        end = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < end:
            time.sleep(0.05)
        return [_command(one)[:200] for one in left if is_alive(one)]

    def end(self) -> None:
        """Kill what is left."""
        for one in self.alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)


def is_alive(process: psutil.Process) -> bool:
    """A zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _runs(process: psutil.Process, module: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return module in words and _HELPER not in words[0] and is_alive(process)
