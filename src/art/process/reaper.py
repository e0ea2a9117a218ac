"""Programs of others that end with this one, also where it is killed and they heed nothing.

One small process for all of them, told on its standard input: `+4711 2.0` a process group to watch and its
grace in seconds, `-4711` one that has ended.
Its input ends however its parent ended; then it kills what is left. It is started by the path
of this file, without `site` and without the package: a few milliseconds, once.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 2.0
"""The default time in seconds from the parent's end to the kill, in which a program can clean up."""
CLOSING_S = 5.0
_POLL_S = 0.05


class Reaper:
    """The side of the parent. The process is started when needed, and again where somebody has killed it."""

    def __init__(self) -> None:
        self._groups: dict[int, float] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # programs have sessions in several threads

    def watch(self, group: int, grace_s: float = GRACE_S) -> None:
        """Kill the process group when this process has ended, however it ended, and `grace_s` has passed.

        Asking again is allowed, and starts the reaper again where somebody has killed it. Raises OSError.
        """
        with self._lock:
            self._groups[group] = grace_s
            if self._process is None or not self._send_line(f"+{group} {grace_s}"):
                self._start()

    def forget(self, group: int) -> None:
        """The group has ended: its number may be another's soon."""
        with self._lock:
            self._groups.pop(group, None)
            if self._process is not None and not self._send_line(f"-{group}"):
                self._start()

    def leave(self) -> None:
        """Leaves the parent's groups in a fork of this process, so that it does not hide the parent's end."""
        process, self._process = self._process, None
        self._groups, self._lock = {}, threading.Lock()
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def close(self) -> None:
        """End it, with what it still watches."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CLOSING_S)

    def _start(self) -> None:
        # A session of its own: what a terminal sends to the whole program would end it too early.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for group, grace_s in self._groups.items():
            self._send_line(f"+{group} {grace_s}")

    def _send_line(self, line: str) -> bool:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return False
        return True


@functools.cache
def reaper() -> Reaper:
    """Returns the reaper of this process."""
    made = Reaper()
    atexit.register(made.close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=made.leave)
    return made


def main() -> None:
    """The side of the child."""
    groups: dict[int, float] = {}
    for line in sys.stdin:
        group, _, grace = line[1:].partition(" ")
        if line[0] == "+":
            groups[int(group)] = float(grace)
        else:
            groups.pop(int(group), None)
    ended = time.monotonic()
    while groups := {one: grace for one, grace in groups.items() if _is_group_alive(one)}:
        for group in [one for one, grace in groups.items() if time.monotonic() - ended >= grace]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
            del groups[group]
        time.sleep(_POLL_S)


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says so of a group that has ended, and nobody has waited for
        return True
    return True


if __name__ == "__main__":
    main()
