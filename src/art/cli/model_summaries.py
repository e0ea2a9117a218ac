"""What verbs for trained models share: the models of a data folder, or of a server that runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art.errors import ConfigurationError
from art.process.environment import API_KEY, variable

if TYPE_CHECKING:
    from art.client.backends.remote_backend import RemoteBackend
    from art.wire.models import ModelSummary

Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The address of a server, instead of a data folder. Its key is read from ART_API_KEY.",
    ),
]


def server_backend(url: str) -> RemoteBackend:
    """Returns the backend of a server that runs. Raises ConfigurationError without a key."""
    from art.client.backends.remote_backend import RemoteBackend

    key = variable(API_KEY)
    if key is None:
        raise ConfigurationError(f"--url {url}: set {API_KEY} to the key of that server")
    return RemoteBackend(url, key)


def read_summaries(data_dir: Path, url: str | None) -> list[ModelSummary]:
    """Returns the models of a server, or those of a folder as its files say. Raises ARTError."""
    if url is not None:
        return asyncio.run(_ask_server(url))
    from art.server.checkpoints.registered_models import RegisteredModels
    from art.server.data_folder import DataLayout

    known = RegisteredModels(DataLayout(data_dir.resolve()))
    return [known.summarize(known.describe(one, one.key)) for one in known.list_models()]


async def _ask_server(url: str) -> list[ModelSummary]:
    async with server_backend(url) as backend:
        return await backend.list_models()
