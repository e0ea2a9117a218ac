"""The server on this machine: started as a child, watched, started again when it dies, ended with us.

    parent -> child, standard input    one JSON line: host, port, key, data_dir, ...; then the pipe stays open
    child -> parent, standard output   one JSON line: {"ready": true, "port": N} or {"ready": false, "error":
    "..."}

When this process dies, however it dies, the kernel closes the pipe: the child reads its end and shuts down
with its workers. One that cannot read any more (it is stopped, or blocked) is killed by the reaper after
`stop_s`. (PR_SET_PDEATHSIG is no help: it fires when the starting *thread* ends.) While this process lives,
`server_watch.py` looks after a server that does not answer.

There is one server a folder: a notebook's cell that is run again meets the server it began, and a second
program attaches to the first one's. When that ends, the second starts the successor at the same address.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from art.client.http.connection import ServerConnection
from art.client.http.server_watch import PROBES, HealthWatch, kill_group
from art.client.requests.registration import REGISTER_S
from art.errors import (
    ARTError,
    ConfigurationError,
    DeadlineError,
    DiskError,
    FolderInUseError,
    ServerUnreachableError,
    WorkerDiedError,
)
from art.process.files import disk_error, make_private_folder, private_opener
from art.process.process_state import describe_state, is_stopped
from art.process.program_notes import read_note
from art.process.reaper import reaper
from art.process.running_server import (
    RunningServer,
    digest_of_options,
    find_server,
    host_on_this_machine,
    is_in_use,
    url_on_this_machine,
)
from art.wire.models import ModelInfo, RegisterRequest

LOG_TAIL_BYTES = 4000
START_LOOK_S = 1.0
"""Seconds between two looks at a server that is starting."""
ATTACH_PAUSE_S = 0.1
"""Seconds between two looks for the server of another program that is starting."""


@dataclass(frozen=True, kw_only=True)
class SupervisorLimits:
    """start_s: until the server serves. stop_s: from SIGTERM to SIGKILL. At most `restarts` in
    `restart_window_s`. It is asked for its health every `health_interval_s`; unanswered for
    `health_deadline_s`, it is killed, and started again when it is next needed.
    """

    start_s: float = 120.0
    stop_s: float = 20.0
    restarts: int = 3
    restart_window_s: float = 600.0
    health_interval_s: float = 2.0
    health_deadline_s: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0 or (value == 0 and name != "restarts"):
                raise ConfigurationError(f"SupervisorLimits({name}={value!r}): it must be above 0")


class _KilledAtStartError(WorkerDiedError):
    """A signal ended it before it served."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ServerProcess:
    """One server process and its successors, on one port with one key. Thread-safe."""

    def __init__(
        self,
        data_dir: Path,
        options: Mapping[str, Any],
        *,
        command: tuple[str, ...] = (sys.executable, "-m", "art.server"),
        limits: SupervisorLimits | None = None,
    ) -> None:
        self.data_dir, self.options, self.command = data_dir, dict(options), command
        self.limits = limits or SupervisorLimits()
        self.key = f"art-{secrets.token_urlsafe(32)}"
        self.host, self.port = "127.0.0.1", 0
        self.log_path = data_dir / "server" / "logs" / "server.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._attached = False
        """Whether the folder's server is another program's."""
        self._watch: HealthWatch | None = None
        self._deaths: deque[float] = deque()
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process id of the running server: our child, or the one that another program started."""
        if self._attached:
            found = find_server(self._server_dir)
            return found.pid if found is not None else None
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    @property
    def _server_dir(self) -> Path:
        return self.data_dir / "server"

    @property
    def url(self) -> str:
        """Returns the server's URL on this machine."""
        return url_on_this_machine(self.host, self.port)

    def ensure_running(self) -> bool:
        """Start the server if it does not run, or attach to another program's that serves the folder. Returns
        whether it is another process than before. Blocks until it serves.

        Raises WorkerDiedError when it died more often than `limits` allow or does not come up, DeadlineError
        when it does not serve in time, ConfigurationError when another program's server has other options or
        another port, DiskError.
        """
        with self._lock:
            if self._child is not None:
                code = self._child.poll()
                if code is None:
                    return False
                self._count_death(code)
                _bury(self._child.pid)
            self._start_until_it_serves()
            return True

    def _attach_or_start(self) -> None:
        deadline = time.monotonic() + self.limits.start_s
        while True:
            if (found := find_server(self._server_dir)) is not None:
                self._attach(found)
                return
            try:
                self._start()
            except FolderInUseError:
                while is_in_use(self._server_dir) and find_server(self._server_dir) is None:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(ATTACH_PAUSE_S)  # it is starting, or ending
            else:
                self._attached = False
                return

    def _attach(self, found: RunningServer) -> None:
        """Takes over its port and key: if it ends with its program, we start its successor there."""
        where = f"process {found.pid} serves {self.data_dir} at {found.url}"
        if self.options and digest_of_options(self.options) != found.options:
            raise ConfigurationError(
                f"{where}, with other server_options: leave them out to use that server, or choose another "
                "folder (LocalBackend(path=...))"
            )
        if self.port not in (0, found.port):
            raise ConfigurationError(
                f"{where}, not at port {self.port}: leave the port out to use that server, or choose another "
                "folder (LocalBackend(path=...))"
            )
        if not self._attached:
            _log.info("attached to a server that runs already: %s", where)
        self._child, self._watch, self._attached = None, None, True
        self.host, self.port, self.key = host_on_this_machine(found.host), found.port, found.key

    def _start_until_it_serves(self) -> None:
        """Counts a kill during the start like a later one."""
        while True:
            try:
                self._attach_or_start()
            except _KilledAtStartError as error:
                self._count_death(error.exit_code)
            else:
                return

    @property
    def has_died(self) -> bool:
        """Returns whether it was started, does not run any more, and nobody has ended it."""
        if self._attached:
            return self.pid is None
        return self._child is not None and self._child.poll() is not None

    def state(self) -> str:
        """Returns the server's state for messages: running, frozen, not answering, starting, or how it
        ended.
        """
        child, watch = self._child, self._watch
        if self._attached:
            pid = self.pid
            return f"the server of another program (pid {pid}) is running" if pid else "the server is gone"
        if child is None:
            return "the server is not running"
        code = child.poll()
        if code is not None:
            return f"the server is gone ({describe_exit(code)}{self._verdict()})"
        if watch is None:
            doing = "starting"
        elif is_stopped(child.pid) or watch.unanswered_s:
            since = f" for {watch.unanswered_s:.0f} s" if watch.unanswered_s else ""
            doing = f"{describe_state(child.pid)}{since}"
        else:
            doing = "running"
        return f"the server (pid {child.pid}) is {doing}"

    def _verdict(self) -> str:
        return f": {self._watch.verdict}" if self._watch is not None and self._watch.verdict else ""

    def _count_death(self, code: int) -> None:
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths and now - self._deaths[0] > self.limits.restart_window_s:
            self._deaths.popleft()
        if len(self._deaths) > self.limits.restarts:
            self._deaths.pop()  # the next call looks again
            raise WorkerDiedError(
                f"the server died {len(self._deaths) + 1} times within {self.limits.restart_window_s:g} s, "
                f"the last time {describe_exit(code)}{self._verdict()}. "
                f"Last lines of {self.log_path}:\n{self.log_tail()}"
            )

    def _start(self) -> None:
        try:
            make_private_folder(self.log_path.parent)
            log = open(self.log_path, "ab", opener=private_opener)
        except OSError as error:
            raise disk_error(error, self.log_path.parent, "the data folder cannot be used") from error
        # The port of the first start is kept, so that clients find the successor where they left.
        settings = {
            "host": self.host,
            "port": self.port,
            "key": self.key,
            "data_dir": str(self.data_dir),
            "log_file": str(self.log_path),
            **self.options,
        }
        reaper()  # made before the line below, it ends after the server at the program's end
        atexit.register(self.stop)
        with log:
            child = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._child, self._watch = child, None
        try:
            self._keep_reaper(child.pid)
            assert child.stdin is not None and child.stdout is not None
            with suppress(BrokenPipeError):  # it died already: the missing ready line tells
                child.stdin.write(json.dumps(settings).encode() + b"\n")
                child.stdin.flush()
            self.port = self._wait_ready(child, child.stdout)
        except BaseException:
            self._end()
            raise
        self._watch = HealthWatch(
            child,
            self.url,
            interval_s=self.limits.health_interval_s,
            deadline_s=self.limits.health_deadline_s,
            keep=lambda: self._keep_reaper(child.pid),
        )
        self._watch.start()

    def _keep_reaper(self, pid: int) -> None:
        """The server ends with this program though it be frozen: it gets as long as `stop` would give it."""
        if os.name == "posix":
            reaper().watch(pid, self.limits.stop_s)

    def _wait_ready(self, child: subprocess.Popen[bytes], stdout: IO[bytes]) -> int:
        first: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._drain, args=(stdout, first), daemon=True).start()
        try:
            line = self._first_line(child, first)
        except queue.Empty:
            raise DeadlineError(
                f"the server (pid {child.pid}) did not serve within {self.limits.start_s:g} s: it is "
                f"{describe_state(child.pid) if is_stopped(child.pid) else 'starting still'}. "
                f"Last lines of {self.log_path}:\n{self.log_tail()}"
            ) from None
        try:
            report = json.loads(line) if line else {"error": f"it ended {self._exit_of(child)}"}
        except json.JSONDecodeError:
            report = {"error": f"its first line is {line[:200]!r}"}
        if report.get("ready"):
            return int(report["port"])
        message = (
            f"the server did not start: {report.get('error')}. "
            f"Last lines of {self.log_path}:\n{self.log_tail()}"
        )
        if (code := child.poll()) is not None and code < 0:
            raise _KilledAtStartError(message, code)
        for kind in (FolderInUseError, DiskError):
            if report.get("kind") == kind.__name__:
                raise kind(str(report["error"]))
        raise WorkerDiedError(message)

    def _first_line(self, child: subprocess.Popen[bytes], first: queue.Queue[bytes]) -> bytes:
        """Raises queue.Empty after `start_s`. One that stays stopped is killed as the watch would do it."""
        until, stopped_s = time.monotonic() + self.limits.start_s, 0.0
        while (left_s := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                return first.get(timeout=min(left_s, START_LOOK_S))
            stopped_s = stopped_s + START_LOOK_S if is_stopped(child.pid) else 0.0
            if stopped_s >= self.limits.health_deadline_s / PROBES:
                kill_group(child.pid)
        raise queue.Empty

    def _exit_of(self, child: subprocess.Popen[bytes]) -> str:
        try:
            return describe_exit(child.wait(self.limits.stop_s))
        except subprocess.TimeoutExpired:
            return "its output, but not itself"

    def _drain(self, stdout: IO[bytes], first: queue.Queue[bytes]) -> None:
        """Hand over the first line; keep what follows in the log, so that the pipe never fills, and say notes
        here too.
        """
        with stdout, self.log_path.open("ab") as log:
            first.put(stdout.readline())
            for line in stdout:
                log.write(line)
                log.flush()
                if (note := read_note(line)) is not None:
                    _log.warning("%s", note)

    def stop(self) -> None:
        """End the server and its workers: a request, a deadline, then a kill. Safe to call twice. Another
        program's server goes on.
        """
        with self._lock:
            self._attached = False
            self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        watch, self._watch = self._watch, None
        atexit.unregister(self.stop)
        if watch is not None:
            watch.stop()
        if child is None:
            return
        if child.stdin is not None:
            with suppress(OSError):
                child.stdin.close()
        if child.poll() is None and not is_stopped(child.pid):  # a stopped one would not hear it
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(self.limits.stop_s)
        _bury(child.pid)
        child.wait(self.limits.stop_s)

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError as error:
            return f"(no log: {error})"


def _bury(pid: int) -> None:
    """The server ended: what it left running in its group goes too."""
    kill_group(pid)
    if os.name == "posix":
        reaper().forget(pid)


def describe_exit(code: int) -> str:
    """`by signal SIGKILL` or `with exit code 3`."""
    return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def check_options(options: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raise ConfigurationError for a server option that nobody knows."""
    if unknown := sorted(options.keys() - known):
        raise ConfigurationError(
            f"server options {unknown!r} are not known; known: {', '.join(sorted(known))}"
        )


_log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class LocalServer:
    """A server process, and the models that are registered again when it is started again. Thread-safe."""

    process: ServerProcess
    registered: dict[tuple[str, str], RegisterRequest] = field(default_factory=dict)
    _ready: int | None = None
    """The process that knows the models."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_ready(self) -> bool:
        """Returns whether it runs and knows the models."""
        return self._ready is not None and self._ready == self.process.pid

    def bring_up(self) -> None:
        """Starts the server with the models. A server that dies meanwhile is restarted, while its limits
        allow. Blocks.

        Raises what `ServerProcess.ensure_running` raises; what a model's registration raises, once: the
        others are served nevertheless.
        """
        with self._lock:
            while not self.is_ready:
                self.process.ensure_running()
                pid = self.process.pid
                if pid is None:
                    continue  # its death is counted there
                try:
                    failures = asyncio.run(self._register_again(pid))
                except ServerUnreachableError as error:
                    if not self.process.has_died:  # closed meanwhile
                        raise
                    _log.warning("the server died while its models were registered again: %s", error)
                    continue
                self._ready = pid
                if failures:
                    raise failures[0]

    async def _register_again(self, pid: int) -> list[ARTError]:
        """Raises ServerUnreachableError when the process has died."""
        address, failures = (self.process.url, self.process.key), list[ARTError]()

        async def known() -> tuple[str, str]:
            return address

        async def look() -> None:
            if self.process.pid != pid:
                raise ServerUnreachableError(self.process.state())

        connection = ServerConnection(known, look, self.process.state)
        try:
            for request in list(self.registered.values()):
                try:
                    await connection.call("POST", "/art/models", ModelInfo, request, deadline_s=REGISTER_S)
                except ServerUnreachableError:
                    raise
                except ARTError as error:
                    _log.error("%s/%s cannot be registered again: %s", request.project, request.name, error)
                    failures.append(error)
        finally:
            await connection.close()
        return failures


@lru_cache(maxsize=1)
def _servers() -> dict[Path, LocalServer]:
    """Returns the servers by data folder."""
    return {}


def local_server(
    folder: Path, options: Mapping[str, Any], limits: SupervisorLimits | None = None
) -> LocalServer:
    """The server of a folder: the one that this program has for it already, or a new one, not yet started.

    Raises ConfigurationError where one runs with other options: two cannot share a folder; and for a path
    that is no text.
    """
    folder = folder.resolve()
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"the name of the data folder {str(folder)!r} is no UTF-8: give another `path`, or set "
            "LANG=C.UTF-8 where the terminal's language is C"
        ) from error
    known = _servers().get(folder)
    if known is not None:
        same = known.process.options == dict(options) and known.process.limits == (
            limits or SupervisorLimits()
        )
        if same:
            return known
        if known.process.pid is not None:
            raise ConfigurationError(
                f"this program runs a server in {str(folder)!r} with other options "
                f"({known.process.options!r}, not {dict(options)!r}): close that backend first, or give the "
                "same options"
            )
    made = LocalServer(process=ServerProcess(folder, options, limits=limits))
    _servers()[folder] = made
    return made
