"""A server's life: lock, ledger, control, listen, tell, serve, and all of it backwards.

The end that a server was asked for comes even if its event loop or a thread of it never returns. Signals and
the end of standard input are answered by the event loop, which closes the rooms in order. Where it is stuck
nobody would listen: so a thread hears the signal too, and starts a clock (`LastExit`) that needs neither the
loop nor the interpreter. When it runs out, all stacks are written to the log and the process ends; the
workers end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import uvicorn
from starlette.middleware.cors import CORSMiddleware

from art.engine.registry import masked_by
from art.errors import ConfigurationError, is_installed, require_extra
from art.process.resources import listen, raise_file_limit
from art.process.running_server import (
    RunningServer,
    announce_server,
    digest_of_options,
    url_on_this_machine,
    withdraw_server,
)
from art.process.worker import Launch, Worker
from art.server.app import App, is_of_pages
from art.server.catalog import Catalog
from art.server.cluster_settings import WorkerPlacer, start_placer
from art.server.control import Control
from art.server.data_folder import PATIENCE_SECONDS, DataFolderLock, DataLayout
from art.server.http import Receive, Scope, Send
from art.server.ledger.face import SampleLedger
from art.server.ledger.ledger import Ledger
from art.server.ledger.stitching import Stitcher
from art.server.promotion.promote import always_commits
from art.server.routes.control_routes import control_routes
from art.server.settings import ServerSettings, resolve_key, resolve_teacher
from art.server.shared_store import LostControlError, ServedRooms, SharedStore, open_gateway, open_store
from art.server.tenants import TENANTS_FILE, TenantKeys
from art.server.workers.gang import TrainerRanks
from art.server.workers.supervisor import WorkerOptions


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
    def watch_signals(self, *numbers: int) -> Iterator[None]:
        """The clock starts with one of these signals, which the event loop gets as before."""
        writer, reader = socket.socketpair()
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        # A daemon: it waits for signals that may never come.
        threading.Thread(
            target=self._listen, args=(reader, before, numbers), name="ending", daemon=True
        ).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            writer.close()

    def _listen(self, reader: socket.socket, before: int, numbers: tuple[int, ...]) -> None:
        with reader:
            while received := reader.recv(64):
                if before >= 0:
                    with contextlib.suppress(OSError):  # the loop has as many as it can take, or has ended
                        os.write(before, received)
                if set(received) & set(numbers):
                    self.arm()


_BACKLOG, _ACCEPTED_TOGETHER = 4096, 8
"""asyncio accepts so many connections before it tells of the first: all others wait in the system's queue."""
_LAST_REPLIES_SECONDS = 5

Until = Callable[[Callable[[], None]], asyncio.Future[None]]
"""Makes a future whose end ends the server; what it is given starts the clock, from any thread."""


async def serve(
    settings: ServerSettings,
    *,
    on_ready: Callable[[RunningServer], None],
    until: Until | None = None,
    last: LastExit | None = None,
) -> None:
    """Serve until a signal (SIGTERM, SIGINT), or until the future that `until` makes is done.

    `last`: the clock that starts with the signal.
    Raises: ConfigurationError when the settings, the data folder, the database or the address cannot be used,
    LostControlError when another server took over.
    """
    last = last or LastExit(settings.control.ending)
    ended = None if until is None else asyncio.ensure_future(until(last.arm))
    key = resolve_key(settings)
    if settings.role == "gateway":
        async with open_gateway(settings, key) as served:
            await _listen_and_answer(settings, key, served, on_ready=on_ready, ended=ended, last=last)
        return
    shared = await open_store(settings, ended)
    if ended is not None and ended.done():  # while it waited for its turn
        if shared is not None:
            await shared.close()
        return
    async with _controller(settings, key, shared) as served:
        await _listen_and_answer(settings, key, served, on_ready=on_ready, ended=ended, last=last)
    if shared is not None and shared.control_lost.is_set():
        raise LostControlError(
            f"this server lost the controller's lock in {shared.shown} and has ended. "
            "What it had not committed, the next one does. Start it again to have it wait in turn"
        )


async def _listen_and_answer(
    settings: ServerSettings,
    key: str,
    served: ServedRooms,
    *,
    on_ready: Callable[[RunningServer], None],
    ended: asyncio.Future[None] | None,
    last: LastExit,
) -> None:
    with _listen(settings) as listener:
        running = RunningServer(
            pid=os.getpid(),
            host=settings.host,
            port=int(listener.getsockname()[1]),
            key=key,
            options=digest_of_options(settings.model_dump(mode="json", exclude_unset=True)),
        )

        def announce() -> None:
            # On a full disk nobody else finds it, and it serves all the same.
            if served.is_announced:
                with contextlib.suppress(OSError):
                    announce_server(settings.server_dir, running)
            on_ready(running)

        server = _Server(_uvicorn_config(served.answer, settings), announce, last)
        watches = [asyncio.ensure_future(served.app.counts.lag.watch())]
        watches += [asyncio.ensure_future(work) for work in served.background(running)]
        if ended is not None:
            watches.append(asyncio.ensure_future(_end_after(server, ended)))
        if served.lost is not None:
            watches.append(asyncio.ensure_future(_end_when_lost(server, served.lost, last)))
        try:
            await server.serve(sockets=[listener])
        finally:
            served.app.pages.close()
            if served.is_announced:
                withdraw_server(settings.server_dir)
            for watch in watches:
                watch.cancel()


@contextlib.asynccontextmanager
async def _controller(
    settings: ServerSettings, key: str, shared: SharedStore | None
) -> AsyncIterator[ServedRooms]:
    """A server with models and jobs: the only one, or the one that holds the database's lock."""
    async with _rooms(settings, shared) as (catalog, ledger, stitcher, control):
        app = App(
            key=key,
            catalog=catalog,
            ledger=ledger,
            stitcher=stitcher,
            limits=settings.limits,
            tenants=TenantKeys(settings.server_dir / TENANTS_FILE),
            control_routes=control_routes(control),
            control_health=lambda: control.health() | ({} if shared is None else shared.described()),
            control_counts=control.counts,
            masked_by=masked_by(settings.engine.name, settings.engine.options),
            stored=None if shared is None else shared.stored_rows(ledger.data_dir),
        )
        app.log_file = settings.log_file
        await app.rollouts.load()

        def list_background(running: RunningServer) -> list[Coroutine[Any, Any, None]]:
            if shared is None:
                return []
            publishing = shared.publish(
                address_for_others(settings.host, running.port),
                key=key,
                catalog=catalog,
                models=control.models,
                engines=control.workers.running_engines,
            )
            return [publishing]

        answer = with_origins(app, settings.allow_origins)
        lost = None if shared is None else shared.control_lost
        yield ServedRooms(app=app, answer=answer, background=list_background, lost=lost)


@contextlib.asynccontextmanager
async def _rooms(
    settings: ServerSettings, shared: SharedStore | None
) -> AsyncIterator[tuple[Catalog, SampleLedger, Stitcher, Control]]:
    async with AsyncExitStack() as rooms:
        if shared is not None:
            rooms.push_async_callback(shared.close)
        # One that lost the controller's lock may still be ending.
        patience = PATIENCE_SECONDS if shared is None else settings.control.ending
        lock = await asyncio.to_thread(DataFolderLock, settings.server_dir, patience=patience)
        rooms.callback(lock.release)
        ledger = _ledger(settings) if shared is None else await _shared_ledger(settings, shared)
        rooms.push_async_callback(ledger.close)
        stitcher = Stitcher(
            ledger,
            max_tokens=settings.limits.remembered_tokens,
            ledger_is_empty=not ledger.shared and await ledger.is_empty(),
        )
        catalog = Catalog()
        cluster = await _cluster(settings)
        if cluster is not None:
            rooms.push_async_callback(cluster.close)
        launch: Launch = Worker.start if cluster is None else cluster.launch
        control = Control(
            data_dir=settings.data_dir,
            catalog=catalog,
            ledger=ledger,
            options=WorkerOptions(
                engine=settings.engine.name,
                engine_options=settings.engine.options,
                replicas=settings.engine.replicas,
                devices=settings.engine.devices,
                transfer=settings.engine.transfer,
                trainer_options=settings.trainer.options,
                launch=launch,
                in_cluster=cluster is not None,
                ranks=TrainerRanks(
                    ranks=settings.trainer.ranks,
                    nodes=settings.trainer.nodes,
                    sharding=settings.trainer.sharding,
                ),
            ),
            cluster=cluster,
            settings=settings.control,
            teachers=resolve_teacher(settings),
            job_table=None if shared is None else await shared.open_jobs(),
            may_commit=always_commits if shared is None else shared.require_control,
        )
        rooms.push_async_callback(control.close)
        await control.start()
        yield catalog, ledger, stitcher, control


async def _cluster(settings: ServerSettings) -> WorkerPlacer | None:
    """The cluster of the settings, connected. Raises ConfigurationError, WorkerDiedError, DeadlineError."""
    if settings.cluster is None:
        return None
    require_extra("cluster", f"the cluster {settings.cluster.address}")
    if settings.engine.devices is not None:
        raise ConfigurationError(
            f"engine.devices={settings.engine.devices!r} names devices of this machine, but the engines run "
            f"in the cluster {settings.cluster.address}, where Ray gives each its GPUs: leave it out, and "
            "say how many with cluster.engine.gpus"
        )
    logs = DataLayout(settings.data_dir).log_file("placer").parent
    return await start_placer(settings.cluster, settings.server_dir, logs)


def _ledger(settings: ServerSettings) -> Ledger:
    """The folder's ledger. One that is lost is never replaced by an empty one unasked.

    Raises: ConfigurationError, DiskError.
    """
    layout = DataLayout(settings.data_dir)
    path = layout.ledger_file
    lost = not path.exists() or path.stat().st_size == 0
    if lost and not settings.control.new_ledger and (trace := layout.trained_here()) is not None:
        raise ConfigurationError(
            f"the ledger {path} is {'empty' if path.exists() else 'missing'}, but {trace} shows that there "
            f"was one: every sample was in it. Restore it (with {path.name}-wal, if you have that). To go on "
            "without those samples, keeping models and checkpoints, start once with a new one: `art serve "
            "--new-ledger`, or LocalBackend(server_options={'control': {'new_ledger': True}})"
        )
    return Ledger(path, removes=settings.control.keep_samples_steps is not None)


async def _shared_ledger(settings: ServerSettings, shared: SharedStore) -> SampleLedger:
    """The database's ledger. A new one is not begun beside what was trained.

    Raises: ConfigurationError, DatabaseError.
    """
    ledger = await shared.open_ledger(settings.data_dir)
    trace = DataLayout(settings.data_dir).trained_here()
    if trace is not None and not settings.control.new_ledger and await ledger.is_empty():
        await ledger.close()
        raise ConfigurationError(
            f"the ledger in {ledger.name} is empty, but {trace} shows that there was another one: name the "
            "database that has its samples, or start without one to use SQLite in the data folder. To go on "
            "without those samples, keeping models and checkpoints, start once with `art serve --new-ledger`"
        )
    return ledger


class _Server(uvicorn.Server):
    """uvicorn that tells when it serves, and leaves the process alive to close its rooms after a signal."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None], last: LastExit) -> None:
        super().__init__(config)
        self._last = last
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn's own raises the signal again as soon as it has stopped listening.
        loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            with self._last.watch_signals(signal.SIGTERM, signal.SIGINT):
                yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


async def _end_after(server: uvicorn.Server, ended: asyncio.Future[None]) -> None:
    await ended
    server.should_exit = True


async def _end_when_lost(server: uvicorn.Server, lost: asyncio.Event, last: LastExit) -> None:
    """A server that is not the controller any more commits nothing: it ends, and leaves the folder."""
    await lost.wait()
    last.arm()
    server.should_exit = True


def address_for_others(host: str, port: int) -> str:
    """Returns the URL by which other servers reach this one, which listens on `host`."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return url_on_this_machine(name, port)


def _listen(settings: ServerSettings) -> socket.socket:
    try:
        return listen(settings.host, settings.port, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {settings.host}:{settings.port}: {error}. Port 0 takes a free one."
        ) from error


def with_origins(app: App, origins: list[str]) -> Any:
    """The application for pages of these origins, too: without any, no browser is answered from elsewhere."""
    if not origins:
        return app
    shared = CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["retry-after"],
    )

    async def serve_origins(scope: Scope, receive: Receive, send: Send) -> None:
        # No other site reads the pages of the runs.
        chosen = app if is_of_pages(scope.get("path", "")) else shared
        await chosen(scope, receive, send)

    return serve_origins


def _uvicorn_config(app: Any, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_http(settings),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        backlog=_ACCEPTED_TOGETHER,
        timeout_keep_alive=int(settings.limits.keep_alive),
        timeout_graceful_shutdown=_LAST_REPLIES_SECONDS,
    )


def _http(settings: ServerSettings) -> Any:
    if not is_installed("httptools"):
        return "h11"  # which has limits of its own
    from art.server.connections import http_protocol

    return http_protocol(settings.limits)


def run(
    settings: ServerSettings,
    *,
    on_ready: Callable[[RunningServer], None],
    until: Until | None = None,
) -> None:
    """`serve` in an event loop of its own, the fast one where it is installed."""
    if sys.platform != "win32" and is_installed("uvloop"):
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    else:
        factory = None
    raise_file_limit()
    # Requests leave little garbage in cycles: collecting it rarely saves a quarter of the server's time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(0.001)  # a thread that reads a large body gives the loop its turn so soon
    with asyncio.Runner(loop_factory=factory) as runner:
        last = LastExit(settings.control.ending)
        try:
            runner.run(serve(settings, on_ready=on_ready, until=until, last=last))
        finally:
            last.disarm()
