"""The three streams of a limited process, none of which waits for another."""

from __future__ import annotations

import os
import selectors
import subprocess
import time

LINE_BYTES = 5 << 20
"""The longest line that is read."""
FLOOD = 4
"""So many times `output_bytes` may go to stderr, of which the end is kept; more ends it."""


class Streams:
    """Its methods block until their deadline, on the monotonic clock: call them from a thread."""

    def __init__(self, process: subprocess.Popen[bytes], output_bytes: int) -> None:
        """output_bytes: of what is written to stdout, and kept of stderr."""
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        self._all = (stdin, stdout, stderr)
        for stream in self._all:
            os.set_blocking(stream.fileno(), False)
        self._output_bytes = output_bytes
        self._rest, self._flood = b"", 0
        self.errors = b""
        """The end of what it wrote to stderr."""
        self.overflow = False
        """Whether it wrote too much."""

    def ask(self, line: bytes, until: float) -> bytes | None:
        """Write a line and read the next one; None when the process ended or the time is up."""
        pending = line + b"\n" if line else b""
        while b"\n" not in self._rest:
            left = self._exchange(pending, until)
            if left is None or len(self._rest) > LINE_BYTES:
                return None
            pending = left
        answer, self._rest = self._rest.split(b"\n", 1)
        return answer

    def talk(self, text: bytes, until: float) -> bytes:
        """Write `text`, and give what comes to stdout until the process ends, is ended, or wrote too much."""
        left: bytes | None = text
        while left is not None:
            left = self._exchange(left, until, close_stdin=True)
            if len(self._rest) > self._output_bytes:
                self.overflow = True
                break
        return self._rest[: self._output_bytes]

    def drain(self, until: float) -> None:
        """Read what it says until it ends."""
        while time.monotonic() < until and self._exchange(b"", until) is not None:
            self._rest = b""

    def end_input(self) -> None:
        self._all[0].close()

    def close(self) -> None:
        for stream in self._all:
            stream.close()

    def _exchange(self, pending: bytes, until: float, *, close_stdin: bool = False) -> bytes | None:
        """Wait until something can be written or read, and do it. What is left to write; None at the end."""
        stdin, stdout, stderr = self._all
        if not pending and close_stdin:
            stdin.close()
        with selectors.DefaultSelector() as waiting:
            for stream in (stdout, stderr):
                if not stream.closed:
                    waiting.register(stream, selectors.EVENT_READ)
            if not waiting.get_map():
                return None
            if pending and not stdin.closed:
                waiting.register(stdin, selectors.EVENT_WRITE)
            ready = waiting.select(max(0.0, until - time.monotonic()))
        if not ready:
            return None
        for key, _ in ready:
            if key.fileobj is stdin:
                pending = self._feed(pending)
                continue
            stream = stdout if key.fileobj is stdout else stderr
            part = os.read(stream.fileno(), 1 << 16)
            if not part:
                stream.close()
            elif stream is stdout:
                self._rest += part
            else:
                self.errors = (self.errors + part)[-self._output_bytes :]
                self._flood += len(part)
        if self._flood > FLOOD * self._output_bytes:
            self.overflow = True
            return None
        return pending

    def _feed(self, pending: bytes) -> bytes:
        try:
            return pending[os.write(self._all[0].fileno(), pending[: 1 << 16]) :]
        except BrokenPipeError:  # it does not read; what it says may still count
            self._all[0].close()
            return b""
