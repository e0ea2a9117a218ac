"""`art serve`: the server in the foreground, for people and for process managers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, urlsplit

import typer

from art.cli.run_options import options_from
from art.errors import ARTError, ConfigurationError

if TYPE_CHECKING:
    from art.process.running_server import RunningServer
    from art.server.settings import EngineSettings


def serve_forever(
    *,
    host: str,
    port: int,
    data_dir: Path,
    engine: str = "builtin",
    engine_options: Sequence[str] = (),
    replicas: int = 1,
    trainer: Mapping[str, Any] | None = None,
    allow_origins: Sequence[str] = (),
    cluster: Mapping[str, Any] | None = None,
    database: str | None = None,
    role: Literal["all", "gateway"] = "all",
    **control: Any,
) -> int:
    """Serve until Ctrl-C or SIGTERM. Returns 0 after a clean stop, 1 when it could not start.

    engine_options: `NAME=VALUE` words. trainer, cluster, control: of `TrainerSettings`, `ClusterSettings` and
    `ControlSettings`.
    """
    from pydantic import ValidationError

    from art.server.cluster_settings import ClusterSettings
    from art.server.process import run
    from art.server.settings import ControlSettings, ServerSettings, TrainerSettings, key_source
    from art.wire.records import flaws_without_values

    _log_to_stderr()
    try:
        settings = ServerSettings(
            host=host,
            port=port,
            data_dir=data_dir,
            allow_origins=list(allow_origins),
            database=_without_password(database),
            role=role,
            engine=_engine_settings(engine, engine_options, replicas),
            trainer=TrainerSettings(**(trainer or {})),
            control=ControlSettings(serve_registered=True, **control),
            cluster=None if cluster is None else ClusterSettings.model_validate(cluster),
        )
    except (ValidationError, ARTError) as error:
        typer.echo(flaws_without_values(error) if isinstance(error, ValidationError) else error, err=True)
        return 2

    def show_address(ready: RunningServer) -> None:
        # The key itself is never printed: a terminal is copied into bug reports.
        typer.echo(
            f"ART serves http://{ready.host}:{ready.port} (OpenAI's protocol under /v1). "
            f"To see its runs: art ui --url {ready.url}\nThe key is in {key_source(settings)}."
        )
        sys.stdout.flush()

    try:
        run(settings, on_ready=show_address)
    except ARTError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        return 1
    return 0


def _without_password(database: str | None) -> str | None:
    """A database's URL as it may stand on a command line, which every user of the machine can read.

    Raises: ConfigurationError.
    """
    parts = urlsplit(database or "")
    if parts.password or "password" in parse_qs(parts.query):
        raise ConfigurationError(
            "--database has a password in it, and other users can read a command line: leave it out and "
            "set PGPASSWORD, or set the whole URL in the environment variable ART_DATABASE_URL"
        )
    return database


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _engine_settings(name: str, words: Sequence[str], replicas: int) -> EngineSettings:
    """Checked here, so that a misspelt option is told before anything starts. Raises: ConfigurationError."""
    from art.engine.registry import engine_options
    from art.server.settings import EngineSettings

    options = options_from("--engine-option", words)
    engine_options(name, options)
    return EngineSettings(name=name, options=options, replicas=replicas)


def cluster_settings(
    address: str | None, words: Sequence[str], *, trust_network: bool
) -> dict[str, Any] | None:
    """The settings of the cluster from the options of the command line; None: this machine alone.

    words: `NAME=VALUE`. Ends the program with code 2 for options without a cluster.
    """
    if address is None:
        if words or trust_network:
            typer.echo("--cluster-option and --trust-network are about a cluster: add --cluster", err=True)
            raise typer.Exit(2)
        return None
    return {"address": address, "trust_network": trust_network, **options_from("--cluster-option", words)}
