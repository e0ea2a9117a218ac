"""A process for what is not trusted: limited, isolated, ended in time with everything that it started.

It is `python -I -S` with an empty environment and no open file of ours. A supervisor of our own stands
between (`confined/supervisor.py`); it ends the rest when its time is up, when we do not want it any more, or
when we die. None of its three streams waits for another.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from art.errors import ConfigurationError, VerifierError
from art.process.threads import usable_cores
from art_extensions.sandbox.limits import Limits


def process_count(at_once: int | None) -> int:
    """Returns how many processes may run at a time; None: the machine's cores. Raises ConfigurationError."""
    if at_once is not None and at_once < 1:
        raise ConfigurationError(
            f"at_once={at_once!r}: at least 1 process is needed; None takes the machine's cores"
        )
    return at_once or usable_cores()


LINE_BYTES = 5 << 20
"""The longest line that is read."""
STDERR_FACTOR = 4
"""Stderr's limit as a multiple of `output_bytes`: its end is kept; more ends the process."""


class ProcessStreams:
    """The streams of a process. Its methods block until their deadline, on the monotonic clock: call them
    from a thread.
    """

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
        """Reads the output until it ends."""
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
        if self._flood > STDERR_FACTOR * self._output_bytes:
            self.overflow = True
            return None
        return pending

    def _feed(self, pending: bytes) -> bytes:
        try:
            return pending[os.write(self._all[0].fileno(), pending[: 1 << 16]) :]
        except BrokenPipeError:  # it does not read; what it says may still count
            self._all[0].close()
            return b""


HOME = str(Path(__file__).parent)
START_SUPERVISOR = f"import sys; sys.path.append({HOME!r}); from confined.supervisor import main; main()"
GRACE_S = 10.0
"""What a supervisor may need beyond the deadline, on a busy machine, to start and to end."""


@dataclass(frozen=True, kw_only=True)
class ProcessIsolation:
    """The means that block files, network and other processes; "" if they are open."""

    files: str
    network: str
    processes: str
    refused: str
    """Why there are no namespaces."""

    @property
    def is_complete(self) -> bool:
        return self.files == self.network == self.processes == "namespace"


@dataclass(frozen=True, kw_only=True)
class ProcessEnding:
    """The end of a process."""

    fate: str
    """"ended", "cpu", "deadline", "output" (it wrote too much) or "cancelled"."""
    code: int
    """Its exit code; -n: signal n."""
    cpu_s: float
    memory_bytes: int
    """The most that was in memory."""


class LimitedProcess:
    """One limited process. Its methods block: call them from a thread.

    Raises VerifierError where it could not be started: a program that fails is no error here.
    """

    def __init__(self, work: str, limits: Limits, *, wall_s: float | None, **order: Any) -> None:
        """work: "program", "functions", "tests" or "checks"; wall_s: None leaves it running until `close`."""
        self._until = time.monotonic() + (GRACE_S + (wall_s or 1e9))
        self.ending: ProcessEnding | None = None
        self.base = tempfile.mkdtemp(prefix="art-limited-")
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = _start_supervisor(theirs.fileno())
        self._streams = ProcessStreams(self._process, limits.output_bytes)
        self._control_lines = self._control.makefile("rb")
        try:
            message = {**asdict(limits), **order, "work": work, "wall_s": wall_s, "base": self.base}
            self._control.settimeout(GRACE_S)
            self._control.sendall(json.dumps(message).encode() + b"\n")
            self.walls = self._read_walls()
        except BaseException:
            self.close()
            raise

    def _read_walls(self) -> ProcessIsolation:
        try:
            words = json.loads(self._control_lines.readline() or b"{}").get("walls")
        except OSError as error:
            raise VerifierError(f"a limited process did not start within {GRACE_S:g} s: {error!r}") from error
        if words is None:
            self._streams.drain(time.monotonic() + GRACE_S)
            said = self.errors.decode(errors="replace")[-2000:]
            raise VerifierError(f"a limited process could not be confined: {said or 'it said nothing'}")
        return ProcessIsolation(**words)

    @property
    def errors(self) -> bytes:
        """The end of what it wrote to stderr."""
        return self._streams.errors

    def ask(self, line: bytes, deadline: float | None = None) -> bytes | None:
        """Write a line and read the next one; None when the process ended or the time is up."""
        return self._streams.ask(line, self._until if deadline is None else deadline)

    def talk(self, text: bytes) -> bytes:
        """Write `text` to its stdin, and give what it writes to stdout until it ends, is ended, or wrote too
        much.
        """
        return self._streams.talk(text, self._until)

    def end_input(self) -> None:
        """Ends the input: there are no further requests."""
        self._streams.end_input()

    def finish(self) -> ProcessEnding:
        """Wait until it ended, at most until its deadline; nothing of it is left then.

        Raises VerifierError where the supervisor itself was lost.
        """
        if self.ending is None:
            if self._streams.overflow:
                self._stop()
            self._control.settimeout(max(0.1, self._until - time.monotonic()))
            try:
                words = json.loads(self._control_lines.readline() or b"null")
            except OSError:
                words = None
            self.close()
            if words is None:
                said = self.errors.decode(errors="replace")[-1000:]
                raise VerifierError(f"the supervisor of a limited process was lost {said}")
            if self._streams.overflow:
                words["fate"] = "output"
            self.ending = ProcessEnding(**words)
        return self.ending

    def _stop(self) -> None:
        with contextlib.suppress(OSError):  # it has ended already
            self._control.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End it if it still runs, and remove its folder. Safe to call again."""
        self._stop()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.killpg(self._process.pid, 9)
            self._process.wait()
        self._streams.close()
        self._control_lines.close()
        self._control.close()
        shutil.rmtree(self.base, ignore_errors=True)

    def __enter__(self) -> LimitedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start_supervisor(control: int) -> subprocess.Popen[bytes]:
    if os.name != "posix":
        raise ConfigurationError("limited processes need Linux or macOS; on Windows, run this in WSL")
    # Not the link of a virtual environment: behind the walls there is only what it leads to.
    command = [
        os.path.realpath(sys.executable),
        "-I",
        "-S",
        "-X",
        "utf8",
        "-c",
        START_SUPERVISOR,
        str(control),
    ]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        bufsize=0,
        env={},
        cwd="/",
        pass_fds=[control],
        start_new_session=True,
    )


def module_folders(*, packages: bool) -> dict[str, Sequence[str]]:
    """Returns the module folders of a limited process: the standard library, and optionally the installed
    packages.

    As fields of an order: `module_folders` (its path), `readable` (folders it may read).
    """
    import sysconfig

    stdlib = sysconfig.get_path("stdlib")
    own = [stdlib, os.path.join(stdlib, "lib-dynload")]
    installed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    chosen = installed if packages else []
    return {"library": [*own, *chosen], "readable": [sys.base_prefix, *chosen]}
