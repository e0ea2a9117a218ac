"""`art cluster`: the nodes of a Ray cluster, and what a server runs there."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli.model_verbs import AsJson, readable_errors
from art.cli.run_options import DATA_DIR
from art.cli.server_groups import DataDir
from art.errors import ConfigurationError, ServerUnreachableError, require_extra
from art.process.environment import API_KEY, variable

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

    from art.server.cluster_settings import ClusterSettings
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
    from art_extensions.cluster.doctor import examine_cluster

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
