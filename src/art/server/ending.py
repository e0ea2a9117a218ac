"""The end that a server was asked for comes, even if its event loop or a thread of it never returns.

Signals and the end of standard input are answered by the event loop, which closes the rooms in order. Where
it is stuck nobody would listen: so a thread hears the signal too, and starts a clock that needs neither the
loop nor the interpreter. When it runs out, all stacks are written to the log and the process ends; the
workers end with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator


class LastExit:
    """The clock of one server."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: from the first word of the end to the process's own."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._armed = self._over = False

    def arm(self) -> None:
        """Start the clock, once. Any thread may."""
        with self._lock:
            if not self._armed and not self._over:
                self._armed = True
                faulthandler.dump_traceback_later(self._seconds, exit=True, file=sys.stderr)

    def disarm(self) -> None:
        """The server has ended in order."""
        with self._lock:
            self._over = True
            if self._armed:
                faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def hears(self, *numbers: int) -> Iterator[None]:
        """The clock starts with one of these signals, which the event loop gets as before."""
        here, there = socket.socketpair()
        here.setblocking(False)
        before = signal.set_wakeup_fd(here.fileno(), warn_on_full_buffer=False)
        # A daemon: it waits for signals that may never come.
        threading.Thread(
            target=self._listen, args=(there, before, numbers), name="ending", daemon=True
        ).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            here.close()

    def _listen(self, there: socket.socket, before: int, numbers: tuple[int, ...]) -> None:
        with there:
            while told := there.recv(64):
                if before >= 0:
                    with contextlib.suppress(OSError):  # the loop has as many as it can take, or has ended
                        os.write(before, told)
                if set(told) & set(numbers):
                    self.arm()
