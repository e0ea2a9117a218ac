"""A process for what is not trusted: limited, behind walls, gone in time with everything that it started.

It is `python -I -S` with an empty environment and no open file of ours. A supervisor of our own stands
between (`confined/supervisor.py`); it ends the rest when its time is up, when we do not want it any more, or
when we die.
"""

from __future__ import annotations

import contextlib
import json
import os
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
from art.rewards.verifiers.streams import Streams

HOME = str(Path(__file__).parent)
START = f"import sys; sys.path.append({HOME!r}); from confined.supervisor import main; main()"
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
        self._until = time.monotonic() + (GRACE_S + (wall_s or 1e9))
        self.ending: Ending | None = None
        self.base = tempfile.mkdtemp(prefix="art-limited-")
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = _start(theirs.fileno())
        self._streams = Streams(self._process, limits.output_bytes)
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
            self._streams.drain(time.monotonic() + GRACE_S)
            said = self.errors.decode(errors="replace")[-2000:]
            raise VerifierError(f"a limited process could not be confined: {said or 'it said nothing'}")
        return Walls(**words)

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
        """Nothing more will be asked."""
        self._streams.end_input()

    def finish(self) -> Ending:
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
        self._streams.close()
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
