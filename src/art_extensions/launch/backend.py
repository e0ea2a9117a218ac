"""`SkyPilotBackend`: a server on a machine of a cloud, started through SkyPilot and reached through ssh.

    backend = await SkyPilotBackend.initialize_cluster(cluster_name="art", gpu="H100")
    ...                                     # register, sample and train as with every backend
    await backend.down()

The server listens on the box's loopback address alone. Its key is made here, and is a secret of the task.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx

from art.client.backends.remote_backend import RemoteBackend
from art.client.requests.jobs import JobDeadlines
from art.errors import DISTRIBUTION, ARTError, BoxError, ConfigurationError, DeadlineError
from art.process.running_server import RunningServer
from art.tracking.progress import open_phases, show_log
from art_extensions.launch.copies import EVERY_S, HomeCopies
from art_extensions.launch.sky_process import SkyPilot
from art_extensions.launch.task import (
    KEY_SECRET,
    TOKEN_SECRET,
    BoxPlan,
    as_resources,
    resolve_version,
    stage_source,
    task_of,
)
from art_extensions.launch.tunnel import BoxShell, Tunnel

START_S = 3600.0
"""Seconds from the accepted job to a server that answers, the installation included."""
JOB_EVERY_S = 60.0
ATTACH_S = 30.0
HEALTH_S = 10.0
KEEP_ALIVE_S = 30.0
"""Seconds between two requests that keep a server busy; shorter than any `idle_minutes`."""
_PAUSE_S = 1.0
_log = logging.getLogger(__name__)


def installed_origin() -> Path | None:
    """Returns the folder of the source that runs here; None where a package was installed."""
    folder = Path(__file__).parents[3]
    return folder if (folder / "pyproject.toml").is_file() and (folder / "src" / "art").is_dir() else None


def plan_box(
    *,
    cluster_name: str = "art",
    gpu: str | None = None,
    resources: Any = None,
    art_version: str | None = None,
    nodes: int = 1,
    cloud: str | None = None,
    idle_minutes: float = 30.0,
    engine: str = "builtin",
) -> BoxPlan:
    """Returns the plan of a box by the options that users know. Raises ConfigurationError."""
    return BoxPlan(
        name=cluster_name,
        version=resolve_version(art_version, version(DISTRIBUTION), installed_origin()),
        gpu=gpu,
        resources=as_resources(resources),
        cloud=cloud,
        nodes=nodes,
        idle_minutes=idle_minutes,
        engine=engine,
    )


def existing_env_file(env_path: str | Path | None) -> Path | None:
    """Returns the absolute path of a file of variables. Raises ConfigurationError where it is missing."""
    if env_path is None:
        return None
    path = Path(env_path).expanduser().absolute()
    if not path.is_file():
        raise ConfigurationError(f"env_path {str(env_path)!r} is no file")
    return path


def new_secrets(nodes: int) -> dict[str, str]:
    """Returns fresh secrets: the server's key, and Ray's token where there are several machines."""
    made = {KEY_SECRET: f"art-{secrets.token_urlsafe(32)}"}
    return made if nodes == 1 else {**made, TOKEN_SECRET: secrets.token_hex(32)}


class Box:
    """A box that serves, with the way to it."""

    def __init__(self, sky: SkyPilot, shell: BoxShell) -> None:
        self.sky, self.shell = sky, shell
        self.tunnel = Tunnel(shell)
        self.key = ""

    async def connect(self) -> None:
        """Opens the tunnel to the server as it is now. Raises BoxError, DeadlineError where none answers."""
        server: RunningServer = await self.shell.find_server()
        await self.tunnel.open(server.port)
        # The models' list is behind the key: a foreign server on the port would refuse it.
        headers = {"authorization": f"Bearer {server.key}"}
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=HEALTH_S) as client:
                reply = await client.get(f"{self.tunnel.url}/art/models", headers=headers)
        except httpx.HTTPError as error:
            raise BoxError(
                f"the server of box {self.shell.box!r} does not answer: {type(error).__name__}"
            ) from error
        if reply.status_code != 200:
            raise BoxError(f"the server of box {self.shell.box!r} answers with status {reply.status_code}")
        self.key = server.key

    async def await_server(self, deadline_s: float) -> None:
        """Connects as soon as there is a server. Raises BoxError (its job has failed), DeadlineError."""
        end, next_look = time.monotonic() + deadline_s, time.monotonic() + JOB_EVERY_S
        while True:
            try:
                await self.connect()
                return
            except (BoxError, DeadlineError) as error:
                problem = error
            if time.monotonic() > next_look:
                await self._check_job()
                next_look = time.monotonic() + JOB_EVERY_S
            if time.monotonic() > end:
                raise DeadlineError(
                    f"box {self.shell.box!r} had no server within {deadline_s:g} s: {problem}"
                ) from problem
            await asyncio.sleep(_PAUSE_S)

    async def _check_job(self) -> None:
        state = await self.sky.job(self.shell.box)
        if state is not None and (state.startswith("FAILED") or state in ("CANCELLED", "SUCCEEDED")):
            raise BoxError(
                f"the server of box {self.shell.box!r} did not start: its job is {state}. The log above has "
                f"its last lines; `sky logs {self.shell.box}` has all"
            )


async def start_box(
    plan: BoxPlan,
    sky: SkyPilot,
    *,
    env_file: Path | None = None,
    force_restart: bool = False,
    start_s: float = START_S,
    begin_phase: Callable[[str], object] = _log.info,
) -> Box:
    """Returns the box of this name: the one that serves already, or one that is started now.

    A start that fails ends the machines that it began. Raises ConfigurationError, BoxError, DeadlineError.
    """
    begin_phase("asking SkyPilot")
    state, config = await sky.status(plan.name)
    if state == "UP" and not force_restart:
        box = Box(sky, BoxShell(plan.name, config))
        try:
            await box.await_server(ATTACH_S)
            return box
        except (BoxError, DeadlineError) as error:
            await box.tunnel.close()
            _log.info("box %s is up without a server (%s): the server is started again", plan.name, error)
    if state == "UP":
        await sky.cancel(plan.name)
    with tempfile.TemporaryDirectory(prefix="art-box-") as place:
        if isinstance(plan.version, Path):
            source = await asyncio.to_thread(stage_source, plan.version, Path(place) / "source")
            task = task_of(replace(plan, version=source))
        else:
            task = task_of(plan)
        begin_phase("starting the machines")
        began = state is None
        try:
            config = await sky.launch(
                plan.name, task, new_secrets(plan.nodes), env_file, autodown=plan.idle_minutes > 0
            )
            begin_phase("installing and starting the server")
            box = Box(sky, BoxShell(plan.name, config))
            try:
                await box.await_server(start_s)
            except BaseException:
                await box.tunnel.close()
                raise
        except ConfigurationError:
            raise
        except BaseException:
            if began:
                await _end_quietly(sky, plan.name)
            raise
    return box


async def _end_quietly(sky: SkyPilot, name: str) -> None:
    """Ends what a failed start began; the failure is what is told."""
    try:
        await asyncio.shield(sky.down(name))
    except ARTError as error:
        _log.error("box %s may still run, and cost money: %s. Run `sky down %s`", name, error, name)


class SkyPilotBackend(RemoteBackend):
    """Sample and train on a machine of a cloud: `await SkyPilotBackend.initialize_cluster(...)`.

    The newest checkpoint of each model, and the server's logs, are copied to `path` every minute and at the
    end. The box goes down with `down()`, or by itself when no client has used it for `idle_minutes`.
    """

    def __init__(self, box: Box, path: Path, *, deadlines: JobDeadlines | None = None) -> None:
        super().__init__(box.tunnel.url, box.key, deadlines=deadlines)
        self._box = box
        self._connecting = asyncio.Lock()
        self.copies = HomeCopies(self._connection, box.shell, path.absolute())
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def initialize_cluster(
        cls,
        *,
        cluster_name: str = "art",
        gpu: str | None = None,
        resources: Any = None,
        art_version: str | None = None,
        env_path: str | None = None,
        force_restart: bool = False,
        nodes: int = 1,
        cloud: str | None = None,
        idle_minutes: float = 30.0,
        engine: str = "builtin",
        path: str | Path = ".art",
        copy_every_s: float = EVERY_S,
        environment: str | Path | None = None,
        start_s: float = START_S,
    ) -> SkyPilotBackend:
        """Start a box, or use the one of this name that serves already; returns when its server answers.

        gpu: `H100` or `H100:8`. resources: SkyPilot's, as a dictionary or `sky.Resources`. art_version: a
        version, or a folder with ART's source; None: this one. env_path: a file of variables for the box,
        each a secret. force_restart: end its server and start another one on the same data. environment:
        where SkyPilot is installed. Raises ConfigurationError, BoxError, DeadlineError.
        """
        plan = plan_box(
            cluster_name=cluster_name,
            gpu=gpu,
            resources=resources,
            art_version=art_version,
            nodes=nodes,
            cloud=cloud,
            idle_minutes=idle_minutes,
            engine=engine,
        )
        sky = SkyPilot(None if environment is None else Path(environment))
        env_file = existing_env_file(env_path)
        show_log()
        with open_phases(f"box {cluster_name}") as begin_phase:
            box = await start_box(
                plan,
                sky,
                env_file=env_file,
                force_restart=force_restart,
                start_s=start_s,
                begin_phase=begin_phase,
            )
        backend = cls(box, Path(path))
        backend.copy_often(copy_every_s)
        return backend

    async def address(self) -> tuple[str, str]:
        """Returns the server's address on this machine, which stays the same, and its key."""
        return await self._address()

    def copy_often(self, every_s: float = EVERY_S) -> None:
        """Bring home what is new, every so many seconds until `close`."""
        self._tasks.append(asyncio.create_task(self.copies.bring_often(every_s)))

    def keep_alive(self, every_s: float = KEEP_ALIVE_S) -> None:
        """Use the server now and then, and open a tunnel that broke: for another program that uses it."""
        self._tasks.append(asyncio.create_task(self._use_often(every_s)))

    async def _use_often(self, every_s: float) -> None:
        next_use = 0.0
        while True:
            await self._revive()
            if time.monotonic() >= next_use:
                with contextlib.suppress(httpx.HTTPError):  # tried again at the next turn
                    client = await self._connection.client()
                    await client.get("/v1/models", timeout=HEALTH_S)
                    next_use = time.monotonic() + every_s
            await asyncio.sleep(_PAUSE_S)

    async def _address(self) -> tuple[str, str]:
        return self._box.tunnel.url, self._box.key

    async def _revive(self) -> None:
        async with self._connecting:
            if not self._box.tunnel.is_open:
                with contextlib.suppress(BoxError, DeadlineError):  # the caller asks again until its deadline
                    await self._box.connect()

    async def close(self) -> None:
        """Bring home what is new, and close the tunnel. The box stays until its idle minutes are over."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        try:
            await self.copies.bring()
        except ARTError as error:
            _log.warning("not everything came home from box %s: %s", self._box.shell.box, error)
        await super().close()
        await self._box.tunnel.close()

    async def down(self) -> None:
        """Bring home what is new, and end the box with its disk. Raises BoxError, DeadlineError."""
        await self.close()
        await self._box.sky.down(self._box.shell.box)


def stop_server(
    arguments: Sequence[str] | None = None, tell: Callable[[str], object] = sys.stdout.write
) -> int:
    """End the server of a box: `stop-server --cluster art`. Returns the exit code.

    The box itself goes down when its time has passed. arguments: of the command line.
    """
    parser = argparse.ArgumentParser(
        prog="stop-server", description=(stop_server.__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--cluster", default="art", help="The box's name.")
    parser.add_argument("--environment", type=Path, help="Where SkyPilot is installed.")
    chosen = parser.parse_args(arguments)
    try:
        asyncio.run(SkyPilot(chosen.environment).cancel(chosen.cluster))
    except ARTError as error:
        tell(f"{error}\n")
        return 1
    tell(f"The server of box {chosen.cluster} has ended.\n")
    return 0


if __name__ == "__main__":
    sys.exit(stop_server())
