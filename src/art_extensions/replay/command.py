"""`art replay`, with its options."""

from __future__ import annotations

import json as json_text
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from art.cli.model_verbs import AsJson, DataDir, readable_errors
from art.cli.run_options import DATA_DIR
from art.errors import ARTError, ConfigurationError, require_extra
from art.process.imports import import_lock
from art_extensions.replay.kill_place import KillPlace

if TYPE_CHECKING:
    from art_extensions.replay.kept_records import KeptRecords
    from art_extensions.replay.replayed_step import ReplayedStep

NOT_POSSIBLE = 2
"""The exit code for a step that cannot be replayed."""
NAME_CHARACTERS = 12
"""Characters of a rollout's name in the table of shares."""
COMPARED = ("loss/train", "loss/grad_norm", "loss/entropy", "data/entries", "data/micro_batches")
"""The metrics that are shown where they differ, in their order."""


Run = Annotated[str, typer.Argument(metavar="RUN", help="The model, PROJECT/NAME.")]
Step = Annotated[
    int | None,
    typer.Argument(
        metavar="STEP",
        help="The step to do again. Not given: prints what the run keeps for replays, and its bytes.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLLOUT",
        help="Leave a rollout out: its name, the first characters of it, or GROUP.PLACE counted from 0. "
        "May be repeated.",
    ),
]
AnotherAlgorithm = Annotated[
    str | None,
    typer.Option(metavar="X", help="Take another algorithm: a name, or JSON with the parts that change."),
]
RowTokens = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Compute micro-batches of at most N tokens.")
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float64"] | None, typer.Option(help="Compute in another precision.")
]
Device = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="Compute on cpu, cuda, or one GPU, such as cuda:1.")
]
Ranks = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Compute by N trainer processes together.")
]
KillAt = Annotated[
    KillPlace | None,
    typer.Option(help="Kill the process that does the step there, and have another one go on."),
]
Shares = Annotated[bool, typer.Option("--shares", help="Print each rollout's share of the gradient too.")]
ShownProgress = Annotated[
    bool, typer.Option("--progress", help="Print on stderr how many tokens of a batch are forwarded.")
]
Database = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Read jobs and samples in the database of the server, as `art serve --database` has it. "
        "ART_DATABASE_URL is read where the folder has no table of jobs.",
    ),
]


def replay(
    run: Run,
    step: Step = None,
    without: Without = None,
    algorithm: AnotherAlgorithm = None,
    row_tokens: RowTokens = None,
    dtype: Dtype = None,
    device: Device = None,
    ranks: Ranks = None,
    kill_at: KillAt = None,
    shares: Shares = False,
    progress: ShownProgress = False,
    database: Database = None,
    data_dir: DataDir = DATA_DIR,
    json: AsJson = False,
) -> None:
    """Do a recorded training step again, and compare it with what it was, bit by bit.

    Without STEP, print which steps can be replayed, and what their records take on the disk.

    Reads what the run recorded; nothing of the run changes, and no server has to run. Each option changes
    one thing, and what it changed is printed. Exit code 0 when all bits are the same or you asked for a
    change, 1 when they differ, 2 when the step cannot be replayed. A kill is no change.
    """
    with readable_errors():
        require_extra("local", "art replay")
    from art_extensions.replay.changed_step import StepChanges
    from art_extensions.replay.made_step import ignore_tokens
    from art_extensions.replay.replayed_step import replay_step

    changes = StepChanges(
        without=without or (),
        algorithm=algorithm,
        row_tokens=row_tokens,
        dtype=dtype,
        device=device,
        ranks=ranks,
    )
    try:
        if step is None:
            if changes.described() or shares or kill_at:
                raise ConfigurationError(f"art replay {run}: name the step that the options are for")
            return _print_kept(run, data_dir, database, json)
        with _silence_libraries():
            found = replay_step(
                run,
                step,
                data_dir,
                changes,
                shares=shares,
                kill_at=kill_at,
                database=database,
                progress=_print_progress if progress else ignore_tokens,
            )
    except ARTError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(NOT_POSSIBLE) from error
    report = as_json(found)
    typer.echo(json_text.dumps(report, indent=2) if json else as_text(report))
    raise typer.Exit(0 if found.difference.bit_equal or report["changed"] else 1)


def _print_kept(run: str, data_dir: Path, database: str | None, json: bool) -> None:
    from art_extensions.replay.kept_records import list_kept

    kept = list_kept(run, data_dir, database)
    typer.echo(json_text.dumps(asdict(kept), indent=2) if json else kept_as_text(kept))


def _print_progress(done: int, total: int) -> None:
    typer.echo(f"forwarded {done:,} of {total:,} tokens", err=True)


@contextmanager
def _silence_libraries() -> Iterator[None]:
    """Their progress bars and their warnings of each other are nobody's concern here."""
    with import_lock:
        from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.enable_progress_bar()


def as_json(found: ReplayedStep) -> dict[str, Any]:
    """Returns what was found as JSON values."""
    difference, was = found.difference, found.recorded.note.result.metrics
    first = difference.first
    return {
        "model": found.recorded.model.key,
        "step": found.recorded.step,
        "changed": found.changes.described(),
        "bit_equal": difference.bit_equal,
        "tensors": difference.tensors,
        "differing_tensors": difference.differing,
        "first": first and {"file": first.file, "tensor": first.tensor, "error": first.error},
        "same_trainer_state": difference.same_state,
        "weights_error": difference.weights_error,
        "update_error": difference.update_error,
        "update_cosine": difference.update_cosine,
        "gradient_error": found.gradient_error,
        "metrics": {
            name: {"recorded": was[name], "replayed": found.metrics[name]}
            for name in COMPARED
            if name in was and name in found.metrics
        },
        "killed": found.killed_at and {"at": found.killed_at, "left": list(found.left_behind)},
        "shares": [asdict(one) for one in found.shares],
        "notes": list(found.notes),
    }


def as_text(report: dict[str, Any]) -> str:
    """Returns the same for a terminal."""
    changed = [f"{name.replace('_', ' ')} {_spelled(value)}" for name, value in report["changed"].items()]
    killed = report["killed"]
    if killed is not None:
        left = ", ".join(killed["left"]) or "nothing"
        changed.append(f"killed at {killed['at']} (it left {left}) and started again")
    title = ", ".join([f"step {report['step']} of {report['model']}", *changed])
    same = report["bit_equal"]
    lines = [f"{title}: bit-equal, {report['tensors']} tensors"] if same else _differences(title, report)
    return "\n".join([*lines, *_share_lines(report["shares"]), *(f"  {note}" for note in report["notes"])])


def kept_as_text(kept: KeptRecords) -> str:
    """Returns what a run keeps, for a terminal."""
    rows: list[tuple[str, ...]] = [("step", "computed.json", "request.json.gz", "replay")]
    for one in kept.steps:
        sizes = (f"{size:,}" if size else "-" for size in (one.computed, one.request))
        rows.append((str(one.step), *sizes, one.refusal or "yes"))
    if kept.without_checkpoint:
        rows.append((f"{kept.without_checkpoint} more", "", "", "no: their checkpoints are gone"))
    rows.append(("all", f"{kept.computed:,}", f"{kept.request:,}", ""))
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    lines = [
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    ]
    return "\n".join([f"what {kept.model} keeps to replay its steps, in bytes:", *lines])


def _differences(title: str, report: dict[str, Any]) -> list[str]:
    lines = [f"{title}: {report['differing_tensors']} of {report['tensors']} tensors differ"]
    if (first := report["first"]) is not None:
        error = "no such tensor or another shape" if first["error"] is None else f"{first['error']:.3g}"
        lines.append(f"  first: {first['tensor']} in {first['file']}, relative error {error}")
    if not report["same_trainer_state"]:
        lines.append("  trainer_state.json differs: the RNG, or a number of the optimizer")
    lines.append(
        f"  relative error of the weights {report['weights_error']:.3g}, of the update "
        f"{report['update_error']:.3g}; cosine of the updates {report['update_cosine']:.6f}"
    )
    if report["gradient_error"] is not None:
        lines.append(f"  relative error of the gradient {report['gradient_error']:.3g}")
    for name, pair in report["metrics"].items():
        if pair["recorded"] != pair["replayed"]:
            lines.append(f"  {name}: {pair['recorded']:.6g} recorded, {pair['replayed']:.6g} replayed")
    return lines


def _share_lines(shares: Sequence[dict[str, Any]]) -> list[str]:
    if not shares:
        return []
    total = sum(one["gradient"]["share"] for one in shares)
    head = f"  shares of the gradient, which add up to {total:.4f}:"
    rows = [("rollout", "name", "reward", "advantage", "share", "cosine", "norm")]
    for one in shares:
        advantage, gradient = one["advantage"], one["gradient"]
        advantage_text = "" if advantage is None else f"{advantage:.3g}"
        numbers = [f"{gradient[name]:.4f}" for name in ("share", "cosine")]
        rows.append(
            (
                one["place"],
                one["rollout"][:NAME_CHARACTERS],
                f"{one['reward']:.3g}",
                advantage_text,
                *numbers,
                f"{gradient['norm']:.3g}",
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    padded = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [head, *(f"    {line}" for line in padded)]


def _spelled(value: Any) -> str:
    return " and ".join(value) if isinstance(value, list) else str(value)
