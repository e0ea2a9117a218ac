"""Processes that tests start, forked from one that has imported torch, transformers and the server already.

    pytest              starts a fork server when it is first needed, and asks it instead of the kernel. Its
                        workers are forks, too, so that all share the memory of what is imported
    the fork server     this file as a program: imports, then forks; it has one thread, and computes nothing
    the new process     a child of the process that asked. Pid, pipes, exit status, environment, folder and
                        signals are those of a fresh interpreter; only the imports are done. Before it begins
                        it forks a fork server of its own, for the workers that it will start

A fresh worker spends three seconds of a core on imports, and the suite starts hundreds. `_is_forked` says
which commands are forked. All others start as always, and so does what asks for more than a fork can give,
and everything under the fixture `real_starts`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import io
import json
import os
import platform
import random
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from asyncio.base_subprocess import BaseSubprocessTransport
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import certifi

from art.process.threads import WAITS

MODULES = ("art.server", "art.process.child", "art.training.worker", "art.engine.builtin.worker")
"""What `python -m` runs in a fork."""
TEST_WORKER = "import sys;exec(eval(sys.stdin.readline()))"
"""What a worker of pytest-xdist runs. Forked, the workers share the memory of all that is imported."""
IMPORTS = (
    *(
        "art.server.process",
        "art.server.settings",
        "art.server.routes.control_routes",
        "art.process.resources",
    ),
    *(
        "art.engine.builtin.engine",
        "art.engine.worker_process",
        "art.engine.registry",
        "art.process.resources",
    ),
    *("art.training.trainer", "art.training.trainer_app", "art.training.policy", "art.wire.training"),
    *(
        "art.rendering.library",
        "art.client.backends.local_backend",
        "art.model",
        "art.trajectories",
        "art.environments.tasks",
    ),
    *("art.cli.main", "openai.resources.chat", "openai.resources.responses", "renderers", "uvloop"),
    *("uvicorn.lifespan.off", "uvicorn.protocols.http.httptools_impl", "uvicorn.loops.auto", "numpy.ma"),
    *("transformers.models.qwen3.modeling_qwen3", "transformers.models.llama.modeling_llama"),
    "websockets.server",
)
"""What takes servers, workers and programs long to import."""
AT_START = (
    "PYTHON",
    "LD_",
    "MALLOC_",
    "OMP_",
    "MKL_",
    "OPENBLAS",
    "RAYON",
    "TOKENIZERS",
    "TORCH",
    "CUDA",
    "HF_",
)
"""Beginnings of variables that an interpreter or a library reads once, when it is loaded."""
READ_LATER = {"HF_TOKEN", *WAITS}
"""Those that begin so and are read when they are needed. With one thread, which is the fork server's
condition, nothing waits for another."""
LEFT = "ART_TESTS_FORK_SERVER"
"""The variable that tells a program's successor of the fork server."""
SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
"""Those that a process can ignore, without the two that `subprocess` and Python set themselves."""
PADDING = 4096
"""Bytes for the command lines of forks."""
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT, _CHILD_CLEARTID, _CHILD_SETTID = 0x00008000, 0x00200000, 0x01000000
_PR_SET_PDEATHSIG, _PR_GET_TID_ADDRESS = 1, 40
_LARGEST_ORDER = 100_000


# In the process that asks.


class ForkServer:
    """The side of the process that asks."""

    def __init__(self, connection: socket.socket, environment: dict[str, str]) -> None:
        self._connection, self.environment = connection, _at_start(environment)
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def keep_open(self) -> int:
        """Keep the connection beyond this program. Returns its number."""
        self._connection.set_inheritable(True)
        return self._connection.fileno()

    def fork(self, order: dict[str, Any], files: Sequence[int]) -> int | None:
        """The pid of a new child of this process; None: it has to be started as always."""
        content = json.dumps(order).encode()
        if (
            os.getpid() != self._pid
            or len(content) > _LARGEST_ORDER
            or _at_start(order["environment"]) != self.environment
        ):
            return None
        with self._lock, contextlib.suppress(OSError):  # a test has killed it
            socket.send_fds(self._connection, [content], files)
            return int(self._connection.recv(64) or 0) or None
        return None


def _at_start(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(AT_START) and name not in READ_LATER
    }


def _start() -> ForkServer | None:
    """The fork server of this process, which has imported all; None where there can be none."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = dict(os.environ)

    def run() -> None:
        # The kernel ends forks that "die with their parent" at the end of the *thread* that began all this.
        with far:
            subprocess.Popen(
                [sys.executable, __file__, str(far.fileno()), "-" * PADDING],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
                env=environment,
            )
        threading.Event().wait()

    threading.Thread(target=run, name="fork server", daemon=True).start()
    atexit.register(near.close)
    return ForkServer(near, environment) if near.recv(64) == b"ready" else None


_real_fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]  # the one place that all ways of starting share
_real_only = False
_own: ForkServer | None = None
"""The one that this process was given when it was forked."""


def read_few_authorities() -> None:
    """A client that does not ask the environment reads the file that is named there nevertheless."""
    everywhere = certifi.where()
    certifi.where = lambda: os.environ.get("SSL_CERT_FILE", everywhere)


def leave_to_successor() -> None:
    """Leave this process's fork server to the program that it is about to become, by `os.exec`."""
    if _own is not None:  # without one, the successor starts all processes as always
        os.environ[LEFT] = json.dumps([_own.keep_open(), _own.environment])


def adopt() -> None:
    """Use the fork server of the program that this process was before, if there is one."""
    if (left := os.environ.pop(LEFT, None)) is not None:
        number, environment = json.loads(left)
        os.set_inheritable(number, False)
        install(ForkServer(socket.socket(fileno=number), environment))


def install(server: ForkServer | None = None) -> None:
    """From now on subprocess, asyncio and uvloop fork what `_is_forked` names.

    server: that of this process, if it has one already.
    """
    if sys.platform != "linux" or platform.machine() not in _CLONE or Path("/dev/nvidiactl").exists():
        return  # a fork of a process that has seen a GPU cannot use it
    if os.environ.get("OMP_NUM_THREADS") != "1":
        return  # numpy starts threads when it is imported
    global _own
    if _own is not None and server is None:
        return  # a worker of pytest, forked with a server of its own
    _own = server
    servers, starting = [server] if server is not None else [], threading.Lock()

    def fork_exec(*asked: Any) -> int:
        order = None if _real_only else _order(*asked)
        if order is not None:
            with starting:
                if not servers:
                    servers.append(_start())
        if order is not None and (asking := servers[0]) is not None:
            files = [
                given if given != -1 else own for own, given in enumerate((asked[6], asked[9], asked[11]))
            ]
            with contextlib.suppress(OSError):  # one of the three is closed
                pid = asking.fork(order, files)
                if pid is not None:
                    return pid
        return int(_real_fork_exec(*asked))

    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        uvloop.new_event_loop = _loop_class(uvloop.Loop)


def _loop_class(base: type[asyncio.AbstractEventLoop]) -> type[asyncio.AbstractEventLoop]:
    """uvloop starts processes in C; this one starts ours through `subprocess`."""

    class Loop(base):  # type: ignore[misc, valid-type]
        async def subprocess_exec(
            self, protocol_factory: Callable[[], asyncio.SubprocessProtocol], *command: Any, **options: Any
        ) -> tuple[asyncio.SubprocessTransport, asyncio.SubprocessProtocol]:
            if _real_only or not _is_forked(command):
                return await super().subprocess_exec(protocol_factory, *command, **options)  # type: ignore[misc, no-any-return]
            protocol, connected = protocol_factory(), self.create_future()
            given = [options.pop(name, subprocess.PIPE) for name in ("stdin", "stdout", "stderr")]
            transport = _Transport(self, protocol, command, False, *given, 0, waiter=connected, **options)
            await connected
            return transport, protocol

    return Loop


class _Transport(BaseSubprocessTransport):  # type: ignore[misc]  # asyncio's own have it for a base too
    def _start(
        self,
        args: Sequence[str],
        shell: bool,
        stdin: Any,
        stdout: Any,
        stderr: Any,
        bufsize: int,
        **options: Any,
    ) -> None:
        loop = self._loop
        process = self._proc = subprocess.Popen(
            args, shell=shell, stdin=stdin, stdout=stdout, stderr=stderr, bufsize=bufsize, **options
        )
        ended = os.pidfd_open(process.pid)

        def tell() -> None:
            loop.remove_reader(ended)
            os.close(ended)
            self._process_exited(process.wait())

        loop.add_reader(ended, tell)


@contextlib.contextmanager
def real_starts() -> Iterator[None]:
    """Fresh interpreters alone, in this process."""
    global _real_only
    before, _real_only = _real_only, True
    try:
        yield
    finally:
        _real_only = before


def _order(*asked: Any) -> dict[str, Any] | None:
    """What a fork has to know; None: it cannot do this.

    asked: what `_posixsubprocess.fork_exec` takes.
    """
    arguments, _, close_files, kept, folder, environment = asked[:6]
    told, _, session, group, gid, gids, uid, mask, before = asked[13:22]
    command = [os.fsdecode(word) for word in arguments]
    given = (group, gid, gids, uid, mask, before)
    if not close_files or tuple(kept) != (told,) or any(one not in (-1, None) for one in given):
        return None
    if not _is_forked(command):
        return None
    try:
        folder = os.fsdecode(folder) if folder is not None else os.getcwd()
    except OSError:
        return None
    if not os.path.isdir(folder):
        return None
    pairs = (os.fsdecode(pair).partition("=") for pair in environment or [])
    return {
        "command": command,
        "folder": folder,
        "environment": dict(os.environ) if environment is None else {name: value for name, _, value in pairs},
        "session": bool(session),
        "ignored": [int(one) for one in SIGNALS if signal.getsignal(one) == signal.SIG_IGN],
        "limits": [(one, *resource.getrlimit(one)) for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
    }


def _is_forked(command: Sequence[str]) -> bool:
    """Our servers, workers and command line, programs in files, and the processes of `pytest --numprocesses`.
    Other programs after `-c` look at a fresh interpreter."""
    if command[0] == str(Path(sys.executable).with_name("art")):
        return True
    if command[0] != sys.executable or len(command) < 2:
        return False
    if command[1:3] == ["-u", "-c"]:
        return command[3] == TEST_WORKER
    return command[1].endswith(".py") or (command[1] == "-m" and command[2] in MODULES)


# In the fork server.


def main() -> None:
    """Import, then fork. Returns in each fork, as the process that was asked for."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    started = dict(os.environ)
    paths = sys.path[1:]
    gc.disable()
    with _nothing_on_stderr():  # the terminal of who started pytest
        for name in IMPORTS:
            importlib.import_module(name)
    read_few_authorities()
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError(f"imports have started threads, which no fork has: {threading.enumerate()}")
    gc.freeze()
    connection.send(b"ready")
    while True:
        order, files = _serve(connection)
        near, connection = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _take_place(order, files)
        if os.fork():
            break
        near.close()
        _hide()
    connection.close()
    install(ForkServer(near, started))
    sys.modules["fork_server"] = sys.modules[__name__]  # for who imports it by its name
    _show(order["command"])
    sys.path[:] = paths
    _run(order["command"], order["ignored"])


@contextlib.contextmanager
def _nothing_on_stderr() -> Iterator[None]:
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


def _serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork once for each order; returns in the fork."""
    while True:
        content, files, _, _ = socket.recv_fds(connection, _LARGEST_ORDER, 3)
        if not content:
            os._exit(0)
        pid = _fork_beside()
        if pid == 0:
            connection.close()
            return json.loads(content), files
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())


def _fork_beside() -> int:
    """As `os.fork`, but the new process is a child of this one's parent."""
    libc, address = ctypes.PyDLL(None), ctypes.c_void_p()
    libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address))
    flags = _CLONE_PARENT | _CHILD_SETTID | _CHILD_CLEARTID | signal.SIGCHLD
    last = (address, None) if platform.machine() == "x86_64" else (None, address)
    libc.syscall.restype = ctypes.c_long
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = libc.syscall(ctypes.c_long(_CLONE[platform.machine()]), ctypes.c_long(flags), None, None, *last)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return int(pid)


def _take_place(order: dict[str, Any], files: list[int]) -> None:
    """In the fork: what the kernel would have set for a fresh process."""
    if order["session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None  # asked for before the fork, in another environment
    for one, soft, hard in order["limits"]:
        resource.setrlimit(one, (soft, hard))


def _hide() -> None:
    """In the fork server of a new process: hold none of its files, heed none of its signals, end with it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    _show([f"fork server of {os.getppid()}"])


def _show(command: Sequence[str]) -> None:
    """Write the command line where `ps` and psutil read it."""
    with open("/proc/self/stat") as file:
        begin, end = map(int, file.read().rpartition(")")[2].split()[45:47])
    content = b"\0".join(os.fsencode(word) for word in command)[: end - begin - 1]
    ctypes.memmove(begin, content.ljust(end - begin, b"\0"), end - begin)


def _run(command: Sequence[str], ignored: Sequence[int]) -> None:
    """Become the program. ignored: signals that the process that asked ignores, as `nohup` makes it do."""
    for number in SIGNALS:
        heeded = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else heeded)
    # The old ones have asked their files already whether they are terminals, pipes or something else.
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    out = open(1, "wb", 0 if at_once else -1, closefd=False)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(  # type: ignore[misc]
        out, line_buffering=out.isatty(), write_through=at_once
    )
    random.seed()
    importlib.import_module("numpy").random.seed()
    gc.enable()
    if command[1:2] == ["-m"]:
        module = command[2]
        sys.argv = [module, *command[3:]]
        sys.path.insert(0, os.getcwd())
        if not hasattr(sys.modules.get(module), "__path__"):
            sys.modules.pop(module, None)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif command[1:3] == ["-u", "-c"]:
        sys.argv = ["-c"]
        sys.path.insert(0, "")
        exec(command[3], {"__name__": "__main__"})
    else:
        script = command if command[0] != sys.executable else command[1:]
        sys.argv = list(script)
        sys.path.insert(0, os.path.dirname(os.path.abspath(script[0])))
        runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main()
