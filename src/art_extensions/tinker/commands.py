"""`art tinker`, with its options."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli.model_verbs import readable_errors
from art.cli.run_options import DATA_DIR, DataDir
from art.errors import ConfigurationError, require_extra
from art.process.environment import API_KEY, variable


def tinker(
    base_model: Annotated[
        list[str] | None,
        typer.Option(
            help="A base model to load at the start. May be repeated. Others are loaded when asked for."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port. 0: a free port.")] = 8010,
    data_dir: DataDir = DATA_DIR,
    engine: Annotated[str, typer.Option(help="The engine that samples: builtin or vllm.")] = "builtin",
    turns: Annotated[
        bool,
        typer.Option(
            "--turns",
            help="Compute the gradients of several runs one after the other: each is to the last bit what it "
            "is alone. Without it, those that come together share a pass over the base model.",
        ),
    ] = False,
    report: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACKER",
            help="A tracker that gets the steps of the runs on this machine: mlflow, otel, tensorboard, "
            "trackio, or one of a package of yours. May be repeated.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Train and sample on the server at this address instead. Its key is read from ART_API_KEY.",
        ),
    ] = None,
) -> None:
    """Serve Tinker's API: programs written for the `tinker` client train on this machine, or on your server.

    Prints the two environment variables that a program needs. A second start in the same folder has the same
    key, and goes on with what was not finished.
    """
    with readable_errors():
        require_extra("tinker", "art tinker")
        from art_extensions.tinker import service
        from art_extensions.tinker.run_records import check_reports

        check_reports(report or ())
        if server is not None and (base_model or turns):
            raise ConfigurationError(
                "--base-model and --turns are for a server of this machine: leave out --server, or them"
            )
        if server is None:
            require_extra("local", "art tinker", remedy="or name a server that runs: --server URL")
            connect = service.local_connect(_local(data_dir, engine, base_model or [], turns=turns))
        else:
            connect = service.remote_connect(server.rstrip("/").removesuffix("/v1"), _key_of_server())
        folder = (data_dir / "tinker").absolute()
        place: Any = {"host": host, "port": port, "on_ready": print_variables}
        serving = service.serve(folder, connect, base_models=base_model or (), reports=report or (), **place)
        asyncio.run(serving)


def _local(data_dir: Path, engine: str, base_models: list[str], *, turns: bool) -> Any:
    from art.client.backends.local_server import local_server

    options: dict[str, Any] = {"engine": {"name": engine}}
    if turns:
        options["trainer"] = {"options": {"shared_passes": False}}
    if base_models:
        options["control"] = {"base_models": base_models}
    return local_server(data_dir.absolute(), options)


def _key_of_server() -> str:
    """Raises ConfigurationError."""
    key = variable(API_KEY)
    if not key:
        raise ConfigurationError("set ART_API_KEY to the key of the server that --server names")
    return key


def print_variables(address: str, key: str) -> None:
    """Prints what a program needs, as a shell takes it."""
    typer.echo(f"export TINKER_BASE_URL={address}\nexport TINKER_API_KEY={key}")
    sys.stdout.flush()
