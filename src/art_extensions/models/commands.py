"""`art models`: the registered models of a data folder, or of a server that runs: list, show, delete. And the
cards of base models.

A list of a folder reads its files and needs no server. What changes a folder goes through its server, which
runs already or is started for the time.
"""

from __future__ import annotations

import asyncio
import json as json_format
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art.cli.model_summaries import Url, read_summaries, server_backend
from art.cli.model_verbs import AsJson, DataDir, readable_errors
from art.cli.run_options import DATA_DIR
from art.errors import ConfigurationError

if TYPE_CHECKING:
    from art.wire.models import ModelSummary

models = typer.Typer(
    name="models",
    help="List, show and delete the models of a folder or of a server, or print a base's card.",
    no_args_is_help=True,
)

Named = Annotated[str, typer.Argument(help="The model, PROJECT/NAME.")]
SHOWN_REWARDS = 10
_UNBOUNDED = 1000


@models.command("list")
def list_models(data_dir: DataDir = DATA_DIR, url: Url = None, json: AsJson = False) -> None:
    """List the registered models: base model, steps, last reward, size, time of the newest checkpoint.

    For a data folder also the GGUF files that were converted on this machine, with their folders and sizes.
    """
    with readable_errors():
        found = read_summaries(data_dir, url)
    if json:
        typer.echo(json_format.dumps([plain_summary(one) for one in found], indent=1))
    elif found:
        print_table(found)
    else:
        typer.echo(f"No models in {url or data_dir}.", err=True)
    if url is None and not json:
        print_converted()


@models.command("show")
def show_model(name: Named, data_dir: DataDir = DATA_DIR, url: Url = None, json: AsJson = False) -> None:
    """Show one model: its checkpoints, the mean reward of each step, and the commands that use it."""
    from art.wire.models import find_summary

    with readable_errors():
        found = find_summary(name, read_summaries(data_dir, url))
    if json:
        typer.echo(json_format.dumps(plain_summary(found), indent=1))
        return
    for title, value in shown_facts(found):
        typer.echo(f"{title + ':':<13} {value}")


@models.command("card")
def show_card(
    base: Annotated[
        str, typer.Argument(metavar="BASE", help="The base model: art/nano-words, art/smollm2, a folder.")
    ],
) -> None:
    """Print the card of a base model: what it is for, what it knows and how well it does."""
    with readable_errors():
        card = card_of(base)
    typer.echo(card.rstrip())


def card_of(base: str) -> str:
    """Returns the text of a base model's card. Raises ConfigurationError where none is on this machine."""
    from art.engine.base_models import model_source, resolve_base

    found = resolve_base(base)
    folder = model_source(found).find_folder(found.source) if found.made_by else Path(found.source)
    if folder is None:
        raise ConfigurationError(
            f"{base} was never used here: `art audit-model {base}` makes a folder of it, which has its card"
        )
    card = folder / "README.md"
    if card.is_file():
        return card.read_text(encoding="utf-8", errors="replace")
    if folder.is_dir():
        raise ConfigurationError(f"the folder {folder} has no card (README.md)")
    raise ConfigurationError(
        f"{base} is no model that ART ships, and no folder here. The card of a model of the hub is at "
        f"https://huggingface.co/{base}"
    )


@models.command("delete")
def delete_model(
    name: Named,
    data_dir: DataDir = DATA_DIR,
    url: Url = None,
    logs: Annotated[
        bool, typer.Option("--logs", help="Also delete the folder's trajectories, history and state of it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete. Without it nothing is deleted.")] = False,
) -> None:
    """Delete a model with all its checkpoints. Without `--yes` it only prints what would be deleted.

    A model with an unfinished training job is kept.
    """
    from art.wire.models import find_summary

    with readable_errors():
        if url is not None and logs:
            raise ConfigurationError("--logs are those of a data folder: leave --url out")
        found = find_summary(name, read_summaries(data_dir, url))
        if yes:
            asyncio.run(_delete(found.key, data_dir, url, logs=logs))
    steps = f"{len(found.checkpoints)} checkpoint{'' if len(found.checkpoints) == 1 else 's'}"
    what = f"{found.key}: {steps}, {size_text(found.size_bytes)}{', and its logs' if logs else ''}"
    typer.echo(f"Deleted {what}." if yes else f"Would delete {what}. Add --yes to delete it.")


async def _delete(key: str, data_dir: Path, url: str | None, *, logs: bool) -> None:
    if url is not None:
        async with server_backend(url) as backend:
            await backend.delete_model(key)
        return
    from art.client.backends.local_backend import LocalBackend

    async with LocalBackend(path=data_dir) as local:
        await local.delete_model(key, logs=logs)


def print_table(found: Iterable[ModelSummary]) -> None:
    """Prints one line a model."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("model", "base model", "step", "checkpoints", "last reward", "size", "updated"):
        names = "model" in title  # a name is copied into the next command
        table.add_column(title, overflow="fold", no_wrap=names, justify="left" if names else "right")
    for one in found:
        reward = "" if one.last_reward is None else f"{one.last_reward:.4g}"
        steps = str(one.step), str(len(one.checkpoints))
        when = time_text(one.updated_at)
        table.add_row(*map(Text, (one.key, one.base_model, *steps, reward, size_text(one.size_bytes), when)))
    console = Console()
    # Without a terminal nobody sees where a line ends.
    console.print(table, highlight=False, width=None if console.is_terminal else _UNBOUNDED)


def print_converted() -> None:
    """Prints one line for each model of another form that was made a folder of on this machine."""
    from art.engine.base_models import model_sources

    for source in model_sources().values():
        if found := source.list_folders():
            typer.echo(
                f"\nConverted from {source.form}, for all data folders (delete a folder to free its space):"
            )
        for one in found:
            typer.echo(f"{one.source}  {size_text(one.size_bytes)}  {one.folder}")


def shown_facts(one: ModelSummary) -> Iterable[tuple[str, str]]:
    """Yields the lines of `art models show`."""
    yield "model", one.key
    yield "base model", one.base_model
    yield "newest step", str(one.step)
    yield "checkpoints", ", ".join(map(str, one.checkpoints)) or "none"
    yield "size", size_text(one.size_bytes)
    yield "updated", time_text(one.updated_at) or "never"
    last = sorted(one.rewards.items())[-SHOWN_REWARDS:]
    yield "rewards", ", ".join(f"step {step}: {value:.4g}" for step, value in last) or "none"
    if one.checkpoint_dir is not None:
        yield "folder", one.checkpoint_dir
    yield "talk to it", f"art chat {one.key}"
    yield "serve it", f"art serve --model {one.key}"


def plain_summary(one: ModelSummary) -> dict[str, object]:
    """Returns what `--json` prints."""
    return {**one.model_dump(), "last_reward": one.last_reward}


def size_text(size: int | None) -> str:
    """Returns "1.5 MB"."""
    from rich.filesize import decimal

    return "" if size is None else decimal(size)


def time_text(seconds: float | None) -> str:
    """Returns "2026-03-04 17:30 UTC"."""
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
