"""`art atif`: logged rollouts as documents of ATIF, and documents as rows for supervised fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from art.cli.model_verbs import DataDir, readable_errors
from art.cli.run_options import DATA_DIR
from art.errors import ConfigurationError

if TYPE_CHECKING:
    from art.trajectories import History, Trajectory
    from art_extensions.atif.steps import Tokens

atif = typer.Typer(
    name="atif",
    help="Trajectories in ATIF, the format of Harbor and its agents: write and read them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@atif.command("export")
def export_documents(
    model: Annotated[str, typer.Argument(help="The model: PROJECT/NAME or PROJECT/NAME@STEP.")],
    output: Annotated[Path, typer.Option(help="The folder to write: a file for each rollout.")],
    split: Annotated[str | None, typer.Option(help="The split: train or val. Default: all.")] = None,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Write logged rollouts as documents of ATIF, with the ids and logprobs of their sampled tokens.

    Without @STEP it takes all steps. Tokens are those of the ledger of the data folder; a sample that it has
    no more is written without them. `art atif export games/player@7 --output trajectories` writes
    trajectories/train-0007/0-0.json for the first rollout of the first group.
    """
    with readable_errors():
        written = sum(_export(model, output, split, data_dir))
    typer.echo(f"documents in {output}: {written}")


def _export(model: str, output: Path, split: str | None, data_dir: Path) -> Iterator[int]:
    """Writes the documents, and yields 1 for each."""
    from art.process.files import write_whole
    from art.server.data_folder import DataLayout
    from art.tracking.folders import find_model
    from art.tracking.trajectory_log import LoggedSteps
    from art_extensions.atif.documents import to_atif

    found = find_model(model, data_dir)
    log, ledger = LoggedSteps(found.files.trajectories), DataLayout(data_dir).ledger_file
    known = sorted((name, step) for name, steps in log.by_split().items() for step in steps)
    chosen = [one for one in known if split in (None, one[0]) and found.step in (None, one[1])]
    if not chosen:
        there = ", ".join(f"{name} {step}" for name, step in known) or "none (`model.log` writes them)"
        raise ConfigurationError(f"no such trajectories of {found.key} are logged. There are: {there}")
    for name, step in chosen:
        for number, group in enumerate(log.groups(name, step)):
            for place, trajectory in enumerate(group.trajectories):
                tokens = _tokens_of(trajectory, ledger)
                document = to_atif(trajectory, model_name=found.key, tokens=tokens)
                path = output / f"{name}-{step:04d}" / f"{number}-{place}.json"
                write_whole(path, json.dumps(document, indent=1), durable=False)
                yield 1


def _tokens_of(trajectory: Trajectory, ledger: Path) -> Tokens:
    from art.server.ledger.ledger import read_samples
    from art_extensions.atif.steps import sample_ids

    histories: list[Trajectory | History] = [trajectory, *trajectory.additional_histories]
    items = [item for history in histories for item in history.messages_and_choices]
    return read_samples(ledger, sample_ids(items)) if ledger.exists() else {}


@atif.command("import")
def import_documents(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Documents of ATIF: JSON.")],
    output: Annotated[Path, typer.Option(help="The file to write: JSON lines. One that exists is replaced.")],
) -> None:
    """Turn documents of ATIF into rows for `art sft`: one for each agent and sub-agent.

    Steps that were copied from another trajectory have the weight 0. Nothing is written where a file is no
    document. `art atif import jobs/*/agent/trajectory.json --output rows.jsonl`.
    """
    from art.process.files import open_whole
    from art.process.foreign_files import parse_json, read_foreign
    from art_extensions.atif.documents import check_document, sft_rows

    rows = 0
    with readable_errors(), open_whole(output) as file:
        for path in files:
            try:
                document = parse_json(read_foreign(path))
            except ValueError as error:
                raise ConfigurationError(f"{path} is no JSON: {error}") from error
            check_document(document, str(path))
            for row in sft_rows(document):
                file.write(json.dumps(row) + "\n")
                rows += 1
    typer.echo(f"rows in {output}: {rows}")
