"""`art keys`: a key and projects for each of several people that use a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art.cli.run_options import DATA_DIR
from art.errors import ARTError

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
