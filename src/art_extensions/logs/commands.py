"""`art import` and `art export-logs`: logs of model calls read and written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from art.cli.model_verbs import DataDir, readable_errors
from art.cli.run_options import DATA_DIR


def import_logs(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Logs: JSON lines or JSON.")],
    output: Annotated[Path, typer.Option(help="The file to write: JSON lines. One that exists is replaced.")],
    to: Annotated[
        str, typer.Option(help="sft: conversations for supervised fine-tuning. scenarios: prompts.")
    ] = "sft",
    format: Annotated[
        str,
        typer.Option(help="auto, otlp, langfuse, openpipe, litellm, openai, stored or messages."),
    ] = "auto",
    keep: Annotated[
        str,
        typer.Option(help="longest: one row a conversation. all: one row a reply."),
    ] = "longest",
    model: Annotated[
        list[str] | None, typer.Option(help="Only calls of this model; * fits any text. May be repeated.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="Only calls with this tag or metadata. May be repeated."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only calls from this time on, such as 2026-01-31."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only calls before this time.")] = None,
    min_score: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only calls whose score is at least this. May be repeated."),
    ] = None,
) -> None:
    """Turn logs of model calls into rows for supervised fine-tuning, or into scenarios.

    Reads request logs (OpenAI, OpenPipe, LiteLLM), Langfuse exports and OpenTelemetry traces. Prints what was
    left out, by reason. Exit code 1 when records were broken or no row was made, 2 for a wrong option.

    `art import calls.jsonl --output rows.jsonl` makes a row of each conversation.
    `art import traces/*.json --to scenarios --output scenarios.jsonl` makes prompts.
    `--min-score helpful=1 --tag production` selects calls.
    """
    from art_extensions.logs.request_logs import CallFilter, LogImport, least_scores, time_of, write_rows

    with readable_errors():
        wanted = CallFilter(
            models=model or (),
            tags=tag or (),
            since=time_of("--since", since),
            until=time_of("--until", until),
            least_scores=least_scores(min_score or ()),
        )
        read = LogImport(files, to=to, format=format, keep=keep, wanted=wanted)
        write_rows(read, output)
    typer.echo("\n".join(read.report.lines()), err=True)
    if not read.report.rows:
        typer.echo(f"No row was made, so {output} was not written.", err=True)
    raise typer.Exit(1 if read.report.broken or not read.report.rows else 0)


def export_logs(
    model: Annotated[str, typer.Argument(help="The model: PROJECT/NAME or PROJECT/NAME@STEP.")],
    output: Annotated[Path, typer.Option(help="The file to write: JSON lines. One that exists is replaced.")],
    format: Annotated[
        str, typer.Option(help="openpipe: requests with responses. otlp: OpenTelemetry spans.")
    ] = "openpipe",
    split: Annotated[str | None, typer.Option(help="The split: train or val. Default: all.")] = None,
    data_dir: DataDir = DATA_DIR,
) -> None:
    """Write logged rollouts as a request log, for other programs and for `art import`.

    Without @STEP it takes all steps. Tags have the reward, the step and the outcome of each rollout.
    `art export-logs games/player --output calls.jsonl` writes every completion of the model's log, and
    `art export-logs games/player@7 --split val --format otlp --output spans.jsonl` the spans of one
    evaluation.
    """
    from art_extensions.logs.request_logs import write_log

    with readable_errors():
        rollouts = write_log(model, output, format=format, split=split, data_dir=data_dir)
    typer.echo(f"rollouts in {output}: {rollouts}")
