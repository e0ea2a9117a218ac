"""`art launch`: a program of this machine with a server on a machine of a cloud."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art.cli.run_options import options_from
from art.errors import ARTError, ConfigurationError
from art.process.environment import API_KEY, BASE_URL, inherited_variables

if TYPE_CHECKING:
    from art_extensions.launch.backend import SkyPilotBackend
    from art_extensions.launch.task import BoxPlan

NOT_STARTED = 127
"""The exit code of a program that is not there, as shells have it."""
STOP_S = 30.0


@dataclass(frozen=True, kw_only=True)
class LaunchChoices:
    """The options of the command besides the plan of the box."""

    program: Sequence[str]
    env_file: Path | None
    keep: bool
    force_restart: bool
    path: Path
    environment: Path | None


Name = Annotated[str, typer.Argument(help="The box's name. A box of this name that is up is used.")]
Program = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- PROGRAM", help="The program of this machine, behind `--`."),
]
Gpus = Annotated[str | None, typer.Option(help="GPUs of each machine: H100 or H100:8.")]
Nodes = Annotated[int, typer.Option(min=1, help="The number of machines.")]
Cloud = Annotated[
    str | None, typer.Option(help="The cloud: aws, runpod, kubernetes ... Default: SkyPilot chooses.")
]
ResourceFields = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A field of SkyPilot's `resources`, with VALUE as JSON or text. May be repeated.",
    ),
]
BoxEngine = Annotated[str, typer.Option(help="The engine of the box: builtin or vllm.")]
ArtVersion = Annotated[
    str | None, typer.Option(help="ART on the box: a version, or a folder of it. Default: this one.")
]
EnvFile = Annotated[
    Path | None, typer.Option(help="A file of variables for the box. Each is sent as a secret.")
]
IdleMinutes = Annotated[
    float,
    typer.Option(min=0, help="The box goes down when nobody has used it for so long. 0: never."),
]
HomeFolder = Annotated[Path, typer.Option(help="The folder for checkpoints and logs of the box.")]
HOME_FOLDER = Path(".art")
Keep = Annotated[bool, typer.Option("--keep", help="Leave the box up at the end.")]
ForceRestart = Annotated[
    bool, typer.Option("--force-restart", help="Start the server of a box that is up again.")
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print the checked task without its secrets, and start nothing."),
]
SkyEnvironment = Annotated[
    Path | None,
    typer.Option(help="SkyPilot's folder. Default: that of `art runtime install skypilot`."),
]


def launch(
    name: Name,
    program: Program = None,
    gpus: Gpus = None,
    nodes: Nodes = 1,
    cloud: Cloud = None,
    resource: ResourceFields = None,
    engine: BoxEngine = "builtin",
    art_version: ArtVersion = None,
    env_file: EnvFile = None,
    idle_minutes: IdleMinutes = 30.0,
    data_dir: HomeFolder = HOME_FOLDER,
    keep: Keep = False,
    force_restart: ForceRestart = False,
    dry_run: DryRun = False,
    at: SkyEnvironment = None,
) -> None:
    """Run a program here with a server on a box of a cloud, through SkyPilot; end the box afterwards.

    PROGRAM finds the server's address in ART_BASE_URL and its key in ART_API_KEY: `art.ServerlessBackend()`
    reads both. The exit code is the program's.
    """
    choices = LaunchChoices(
        program=program or [],
        env_file=env_file,
        keep=keep,
        force_restart=force_restart,
        path=data_dir,
        environment=at,
    )
    try:
        from art_extensions.launch.backend import plan_box

        if not program and not dry_run:
            raise ConfigurationError(f"no program: art launch {name} ... -- python train.py")
        plan = plan_box(
            cluster_name=name,
            gpu=gpus,
            resources=options_from("--resource", resource or []),
            art_version=art_version,
            nodes=nodes,
            cloud=cloud,
            idle_minutes=idle_minutes,
            engine=engine,
        )
        code = asyncio.run(_print_task(plan, choices) if dry_run else _run_program(plan, choices))
    except ConfigurationError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    except ARTError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(1) from error
    raise typer.Exit(code)


async def _print_task(plan: BoxPlan, choices: LaunchChoices) -> int:
    from art_extensions.launch.backend import existing_env_file, new_secrets
    from art_extensions.launch.sky_process import SkyPilot
    from art_extensions.launch.task import task_of

    sky = SkyPilot(choices.environment)
    text = await sky.check(
        plan.name, task_of(plan), new_secrets(plan.nodes), existing_env_file(choices.env_file)
    )
    typer.echo(text, nl=False)
    return 0


async def _run_program(plan: BoxPlan, choices: LaunchChoices) -> int:
    from art.tracking.progress import open_phases
    from art_extensions.launch.backend import (
        KEEP_ALIVE_S,
        SkyPilotBackend,
        existing_env_file,
        start_box,
    )
    from art_extensions.launch.sky_process import SkyPilot

    with open_phases(f"box {plan.name}") as begin_phase:
        box = await start_box(
            plan,
            SkyPilot(choices.environment),
            env_file=existing_env_file(choices.env_file),
            force_restart=choices.force_restart,
            begin_phase=begin_phase,
        )
    backend = SkyPilotBackend(box, choices.path.absolute())
    backend.copy_often()
    backend.keep_alive(min(KEEP_ALIVE_S, plan.idle_minutes * 15) if plan.idle_minutes else KEEP_ALIVE_S)
    try:
        return await _await_program(choices.program, await backend.address())
    finally:
        # Ctrl-C has ended the program; the way home is not cut off by it as well.
        await asyncio.shield(_leave(backend, plan, keep=choices.keep))


async def _leave(backend: SkyPilotBackend, plan: BoxPlan, *, keep: bool) -> None:
    if keep:
        await backend.close()
        typer.echo(f"Box {plan.name} stays up. To end it: sky down {plan.name}", err=True)
    else:
        await backend.down()


async def _await_program(program: Sequence[str], address: tuple[str, str]) -> int:
    """Runs the program with the address and the key in its environment. Returns its exit code."""
    url, key = address
    variables: Mapping[str, str] = {**inherited_variables(), BASE_URL: url, API_KEY: key}
    try:
        process = await asyncio.create_subprocess_exec(*program, env=variables)
    except OSError as error:
        typer.echo(f"{shlex.join(program)} did not start: {error}", err=True)
        return NOT_STARTED
    with _signals_left_to(process):
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await process.wait()
            if process.returncode is None:
                process.kill()
            raise
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def _signals_left_to(process: asyncio.subprocess.Process) -> Iterator[None]:
    """Lets the program decide about Ctrl-C, which a terminal sends to it as well, and passes SIGTERM on."""
    loop = asyncio.get_running_loop()

    def pass_on() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)

    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
