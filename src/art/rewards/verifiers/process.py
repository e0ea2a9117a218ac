"""A process for what is not trusted: limited, behind walls, gone in time with everything that it started.

It is `python -I -S` with an empty environment and no open file of ours. A supervisor of our own stands
between (`confined/supervisor.py`); it ends the rest when its time is up, when we do not want it any more, or
when we die.
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
from art.rewards.verifiers.limits import Limits

HOME = str(Path(__file__).parent)
START = f"import sys; sys.path.append({HOME!r}); from confined.supervisor import main; main()"
LINE_BYTES = 5 << 20
"""The longest line that is read."""
FLOOD = 4
"""So many times `output_bytes` may go to stderr, of which the end is kept; more ends it."""
GRACE_S = 10.0
"""What a supervisor may need beyond the deadline, on a busy machine, to start and to end."""


@dataclass(frozen=True, kw_only=True)
class Walls:
    """By what means files, network and other processes are out of reach; "" where they are not."""

    files: str
    network: str
    processes: str
    refused: str
    """Why there are no namespaces."""

    @property
    def whole(self) -> bool:
        return self.files == self.network == self.processes == "namespace"


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a process ended."""

    fate: str
    """"ended", "cpu", "deadline", "output" (it wrote too much) or "cancelled"."""
    code: int
    """Its exit code; -n: signal n."""
    cpu_s: float
    memory_bytes: int
    """The most that was in memory."""


class Child:
    """One limited process. Its methods block: call them from a thread.

    Raises VerifierError where it could not be started: a program that fails is no error here.
    """

    def __init__(self, work: str, limits: Limits, *, wall_s: float | None, **order: Any) -> None:
        """work: "program", "functions", "tests" or "checks"; wall_s: None leaves it running until `close`."""
        self._limits = limits
        self._until = time.monotonic() + (GRACE_S + (wall_s or 1e9))
        self.errors = b""
        self.ending: Ending | None = None
        self._rest, self._flood, self._overflow = b"", 0, False
        self.base = tempfile.mkdtemp(prefix="art-limited-")
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = _start(theirs.fileno())
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        self._streams = (stdin, stdout, stderr)
        for stream in self._streams:
            os.set_blocking(stream.fileno(), False)
        self._control_lines = self._control.makefile("rb")
        try:
            told = {**asdict(limits), **order, "work": work, "wall_s": wall_s, "base": self.base}
            self._control.settimeout(GRACE_S)
            self._control.sendall(json.dumps(told).encode() + b"\n")
            self.walls = self._read_walls()
        except BaseException:
            self.close()
            raise

    def _read_walls(self) -> Walls:
        try:
            words = json.loads(self._control_lines.readline() or b"{}").get("walls")
        except OSError as error:
            raise VerifierError(f"a limited process did not start within {GRACE_S:g} s: {error!r}") from error
        if words is None:
            self._drain(time.monotonic() + GRACE_S)
            said = self.errors.decode(errors="replace")[-2000:]
            raise VerifierError(f"a limited process could not be confined: {said or 'it said nothing'}")
        return Walls(**words)

    def _drain(self, until: float) -> None:
        """Read what it says until it ends, at most until then."""
        while time.monotonic() < until and self._exchange(b"", until) is not None:
            self._rest = b""

    def ask(self, line: bytes, deadline: float | None = None) -> bytes | None:
        """Write a line and read the next one; None when the process ended or the time is up."""
        until = self._until if deadline is None else deadline
        pending = line + b"\n" if line else b""
        while b"\n" not in self._rest:
            left = self._exchange(pending, until)
            if left is None or len(self._rest) > LINE_BYTES:
                return None
            pending = left
        answer, self._rest = self._rest.split(b"\n", 1)
        return answer

    def talk(self, text: bytes) -> bytes:
        """Write `text` to its stdin, and give what it writes to stdout until it ends, is ended, or wrote too
        much.
        """
        left: bytes | None = text
        while left is not None:
            left = self._exchange(left, self._until, close_stdin=True)
            if len(self._rest) > self._limits.output_bytes:
                self._overflow = True
                break
        return self._rest[: self._limits.output_bytes]

    def _exchange(self, pending: bytes, until: float, *, close_stdin: bool = False) -> bytes | None:
        """Wait until something can be written or read, and do it. What is left to write; None at the end."""
        stdin, stdout, stderr = self._streams
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
                self.errors = (self.errors + part)[-self._limits.output_bytes :]
                self._flood += len(part)
        if self._flood > FLOOD * self._limits.output_bytes:
            self._overflow = True
            return None
        return pending

    def _feed(self, pending: bytes) -> bytes:
        try:
            return pending[os.write(self._streams[0].fileno(), pending[: 1 << 16]) :]
        except BrokenPipeError:  # it does not read; what it says may still count
            self._streams[0].close()
            return b""

    def end_input(self) -> None:
        """Nothing more will be asked."""
        self._streams[0].close()

    def finish(self) -> Ending:
        """Wait until it ended, at most until its deadline; nothing of it is left then.

        Raises VerifierError where the supervisor itself was lost.
        """
        if self.ending is None:
            if self._overflow:
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
            if self._overflow:
                words["fate"] = "output"
            self.ending = Ending(**words)
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
        for stream in self._streams:
            stream.close()
        self._control_lines.close()
        self._control.close()
        shutil.rmtree(self.base, ignore_errors=True)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start(control: int) -> subprocess.Popen[bytes]:
    if os.name != "posix":
        raise ConfigurationError("limited processes need Linux or macOS; on Windows, run this in WSL")
    # Not the link of a virtual environment: behind the walls there is only what it leads to.
    command = [os.path.realpath(sys.executable), "-I", "-S", "-X", "utf8", "-c", START, str(control)]
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


def library(*, packages: bool) -> dict[str, Sequence[str]]:
    """Where a limited process finds modules: the standard library, and the installed packages if wanted.

    As fields of an order: `library` (its path), `readable` (folders it may read).
    """
    import sysconfig

    stdlib = sysconfig.get_path("stdlib")
    own = [stdlib, os.path.join(stdlib, "lib-dynload")]
    installed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    chosen = installed if packages else []
    return {"library": [*own, *chosen], "readable": [sys.base_prefix, *chosen]}
