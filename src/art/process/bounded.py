"""Work for strangers under hard limits: each task in a fork of a process that is kept for it.

    us          Bounded("art.engine.constraints", setup, limits).ask(task)
    the helper  python -m art.process.bounded art.engine.constraints     prepares once, forks for each task
    the fork    limits of CPU time and memory, one task, one answer, the end

A task cannot be stopped where it runs in a thread; a fork can be killed, and takes its memory with it. What
goes over the pipes is a length of 4 bytes and so many bytes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass

import orjson

from art.process.environment import die_with_parent, inherited_variables

_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "TMPDIR")
"""Variables that an interpreter needs. Keys are not among them."""
_SINGLE = {"MALLOC_ARENA_MAX": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""A process that forks has one thread."""
_START_S = 120.0
_GRACE_S = 10.0
_LENGTH = struct.Struct("!I")
_ANSWER, _REFUSED, _TIME, _MEMORY, _OUTPUT, _CANCELLED, _DIED = b"a", b"r", b"t", b"m", b"o", b"c", b"d"
Handler = Callable[[bytes], bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkLimits:
    """The limits of one task."""

    cpu_s: int
    """Seconds of processor time."""
    wall_s: float
    """Seconds, for a machine that is so busy that the former never come."""
    memory_bytes: int
    """Beyond what the helper has itself."""
    output_bytes: int


class LimitExceededError(Exception):
    """A task was ended by a limit. `limit`: its words for a message."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


class WorkCancelledError(Exception):
    """`Bounded.cancel` was called."""


class WorkRefusedError(Exception):
    """The task says of itself what is wrong with it."""


class Bounded:
    """A helper, started for its first task. Safe to use from several threads: tasks are done in turn."""

    def __init__(self, module: str, setup: Callable[[], bytes], limits: WorkLimits) -> None:
        """`module` has a function `prepare(setup: bytes) -> Callable[[bytes], bytes]`."""
        self._module, self._setup, self._limits = module, setup, limits
        self._turn = threading.Lock()
        self._writing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._busy = False

    @property
    def pid(self) -> int | None:
        """The process id of the helper; None while there is none."""
        return None if self._process is None else self._process.pid

    def ask(self, task: bytes) -> bytes:
        """The answer. Raises: LimitExceededError, WorkRefusedError, WorkCancelledError, OSError."""
        with self._turn:
            try:
                process = self._running()
                deadline = time.monotonic() + self._limits.wall_s + _GRACE_S
                with self._writing:
                    _write(process.stdin.fileno(), task, deadline)  # type: ignore[union-attr]  # it is a pipe
                    self._busy = True
                answer = _read(process.stdout.fileno(), deadline)  # type: ignore[union-attr]  # it is a pipe
            except TimeoutError as error:
                self._end()
                raise LimitExceededError(f"{self._limits.wall_s:g} s") from error
            except (OSError, EOFError) as error:
                self._end()
                raise OSError(f"the helper {self._module} was lost: {error}") from error
            finally:
                with self._writing:
                    self._busy = False
        return self._read_answer(answer)

    def cancel(self) -> None:
        """End the task that is being done, if there is one."""
        with self._writing, contextlib.suppress(OSError):  # TimeoutError is one: who asks ends the helper
            if self._busy and self._process is not None:
                _write(self._process.stdin.fileno(), b"", time.monotonic() + _GRACE_S)  # type: ignore[union-attr]  # it is a pipe

    def close(self) -> None:
        """End the helper and what it does; the next task starts another one."""
        process = self._process
        if process is not None:
            process.kill()
        with self._turn:
            self._end()

    def _read_answer(self, answer: bytes) -> bytes:
        kind, rest = answer[:1], answer[1:]
        if kind == _ANSWER:
            return rest
        limits = self._limits
        if kind == _REFUSED:
            raise WorkRefusedError(rest.decode("utf-8", "replace"))
        if kind == _CANCELLED:
            raise WorkCancelledError
        words = {
            _TIME: f"{limits.cpu_s} s of processor time",
            _MEMORY: f"{limits.memory_bytes >> 20} MiB of memory",
            _OUTPUT: f"{limits.output_bytes} bytes of output",
        }
        if kind in words:
            raise LimitExceededError(words[kind])
        raise OSError(f"a task of {self._module} ended: {rest.decode('utf-8', 'replace')}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        environment = {name: value for name, value in inherited_variables().items() if name in _KEPT}
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "art.process.bounded", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, **_SINGLE},
        )
        assert process.stdin is not None and process.stdout is not None
        weakref.finalize(self, process.kill)
        deadline = time.monotonic() + _START_S
        _write(process.stdin.fileno(), orjson.dumps(asdict(self._limits)), deadline)
        _write(process.stdin.fileno(), self._setup(), deadline)
        _read(process.stdout.fileno(), deadline)
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]  # both are pipes


# In the helper.


def main() -> None:
    """Prepare, then do tasks until standard input ends."""
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what a task prints is no answer
    limits = WorkLimits(**orjson.loads(_read(requests, None)))
    handler: Handler = importlib.import_module(sys.argv[1]).prepare(_read(requests, None))
    _write(answers, b"ready")
    with contextlib.suppress(EOFError):
        while True:
            task = _read(requests, None)
            if task:  # else it was cancelled after its end
                _write(answers, _done(handler, task, limits, requests))


def _done(handler: Handler, task: bytes, limits: WorkLimits, asked: int) -> bytes:
    """Do a task in a fork, and look after it."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        _work(handler, task, limits, sink)
    os.close(sink)
    answer, killed = bytearray(), b""
    deadline = time.monotonic() + limits.wall_s
    ended = False
    while not ended and not killed:
        ready, _, _ = select.select([source, asked], [], [], max(0.0, deadline - time.monotonic()))
        if source in ready:
            part = os.read(source, 1 << 16)
            answer += part
            ended = not part
            killed = _OUTPUT if len(answer) > limits.output_bytes + 1 else b""
        elif asked in ready:
            killed = _CANCELLED  # or nobody is there any more, which the next read says
        elif not ready:
            killed = _TIME
    os.close(source)
    if killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if killed:
        if killed == _CANCELLED:
            _read(asked, None)
        return killed
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in (signal.SIGXCPU, signal.SIGKILL):
            return _TIME
        # Native code that gets no memory aborts.
        return _MEMORY if number in (signal.SIGABRT, signal.SIGSEGV) else _DIED + f"signal {number}".encode()
    return bytes(answer) or _DIED + b"no answer"


def _work(handler: Handler, task: bytes, limits: WorkLimits, sink: int) -> None:
    """Answers in the fork, and ends."""
    import resource  # systems without it have no forks either

    try:
        die_with_parent()
        _limit(resource.RLIMIT_CPU, limits.cpu_s)
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_AS, _size() + limits.memory_bytes)
        try:
            answer = _ANSWER + handler(task)
        except MemoryError:
            answer = _MEMORY
        except WorkRefusedError as error:
            answer = _REFUSED + str(error).encode("utf-8", "replace")
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends this task alone
            answer = _DIED + f"{type(error).__name__}: {error}".encode("utf-8", "replace")
        rest = memoryview(answer)
        while rest:
            rest = rest[os.write(sink, rest) :]
    finally:
        os._exit(0)


def _limit(kind: int, most: int) -> None:
    import resource

    with contextlib.suppress(ValueError, OSError):  # a system without it has the other limits
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, hard))


def _size() -> int:
    """Bytes of address space that this process has."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 1 << 34


# Frames.


def _write(descriptor: int, content: bytes, deadline: float | None = None) -> None:
    """Raises: TimeoutError, for a reader that does not read."""
    rest = memoryview(_LENGTH.pack(len(content)) + content)
    while rest:
        if deadline is None:
            rest = rest[os.write(descriptor, rest) :]
            continue
        _await(descriptor, select.POLLOUT, deadline)
        # A pipe that is ready takes so many bytes without waiting for its reader.
        rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]


def _await(descriptor: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
        raise TimeoutError("the other side did nothing in time")


def _read(descriptor: int, deadline: float | None) -> bytes:
    """Raises: EOFError, TimeoutError."""
    (length,) = _LENGTH.unpack(_exactly(descriptor, _LENGTH.size, deadline))
    return _exactly(descriptor, length, deadline)


def _exactly(descriptor: int, count: int, deadline: float | None) -> bytes:
    content = bytearray()
    while len(content) < count:
        if deadline is not None:
            _await(descriptor, select.POLLIN, deadline)
        part = os.read(descriptor, min(count - len(content), 1 << 20))
        if not part:
            raise EOFError("the pipe ended")
        content += part
    return bytes(content)


if __name__ == "__main__":
    # Under its own name: the errors that tasks raise are those of the module that handlers import.
    importlib.import_module("art.process.bounded").main()
