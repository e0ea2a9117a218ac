"""Whether the server that we started still answers; one that does not is ended, so that its callers go on.

A process that is stopped (SIGSTOP, a debugger, a frozen cgroup) or whose event loop is blocked keeps its
connections open: whoever asked it would wait for the whole time-out of his request.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from art.process.process_state import describe_state, is_stopped

_log = logging.getLogger(__name__)

PROBES = 3
"""The deadline divided by this is the timeout of one check. A single failed check ends a server that is
stopped by a signal, and no other."""
_DUMP_S = 0.5


class HealthWatch:
    """A thread that asks one server process for its health until that ends."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        url: str,
        *,
        interval_s: float,
        deadline_s: float,
        keep: Callable[[], None],
    ) -> None:
        """interval_s: between two questions. deadline_s: unanswered for so long, it is killed with its group.

        keep: called before each question.
        """
        self._child, self._address = child, urlsplit(url)
        self._interval_s, self._deadline_s, self._keep = interval_s, deadline_s, keep
        self.unanswered_s = 0.0
        """Seconds since it last answered."""
        self.verdict: str | None = None
        """Why it was killed, if it was by this watch."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch server {child.pid}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. Does not wait for a question that is under way."""
        self._over.set()

    def _watch(self) -> None:
        timeout = self._deadline_s / PROBES
        while not self._over.wait(min(self._interval_s, timeout)):
            if self._child.poll() is not None:
                return
            with contextlib.suppress(OSError):  # it is tried again with the next question
                self._keep()
            begun = time.monotonic()
            if self._answers(timeout):
                self.unanswered_s = 0.0
                continue
            # Not more than was waited for: a program that was itself stopped has heard nothing meanwhile.
            self.unanswered_s += min(time.monotonic() - begun, timeout) + min(self._interval_s, timeout)
            hopeless = self.unanswered_s >= self._deadline_s or is_stopped(self._child.pid)
            if hopeless and not self._over.is_set():
                self._end()
                return

    def _answers(self, timeout: float) -> bool:
        """Any answer will do: it is an HTTP server that lives."""
        port = self._address.port
        connection = http.client.HTTPConnection(self._address.hostname or "", port, timeout=timeout)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status > 0
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _end(self) -> None:
        pid = self._child.pid
        self.verdict = f"it was {describe_state(pid)} and had not answered for {self.unanswered_s:.0f} s"
        _log.error("the server (pid %d) is ended: %s", pid, self.verdict)
        with contextlib.suppress(ProcessLookupError):
            # Where each of its threads stands goes to its log; one that is stopped must run to write that.
            os.kill(pid, signal.SIGUSR1)
            os.kill(pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_DUMP_S)
        kill_group(pid)


def kill_group(pid: int) -> None:
    """Kill what is left of a child's process group; the child leads its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
