"""How a run ended, read from its folder, and the judgement: as undisturbed, or by a named error in time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.faults.paid_judge import JudgeBooks
from bench.faults.program import NAME, PROJECT, STEPS
from bench.faults.table import Cell

BOUND_S = 60.0
"""Within so many seconds of the fault a run goes on, or ends by a named error."""
WEIGHTS = ("adapter_model.safetensors", "optimizer.safetensors")
HALF_WRITTEN = ("*.tmp", "*.partial", "*.saving", ".*.tmp*", "under_way/*")
MOST_MESSAGE = 200
LOST = frozenset({"failed", "unscored"})
"""Outcomes of a rollout whose judge or tools are gone. Any other one is a reward that nobody gave."""
EQUAL, FEWER, NO_END = "equal", "fewer rollouts", "no end"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a run has left in its folder."""

    weights: dict[int, str]
    """SHA-256 of adapter and optimizer, by step."""
    logged: list[int]
    """Steps of the rows of `history.jsonl`, in their order."""
    kept: list[int]
    """Steps whose trajectories are kept."""
    trained: list[int]
    """Steps that jobs have made."""
    outcomes: dict[str, int]
    """Rollouts of the last step, by what became of them."""
    started: int
    half_written: list[str]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one process of the program ended. error: the class of the exception. is_ours: of `art.errors`.

    seconds: from the fault to the end, or of the whole run where there was none.
    """

    status: int | None
    """None: it was killed when its time was over."""
    error: str = ""
    is_ours: bool = False
    message: str = ""
    steps: int | None = None
    evaluated: str = ""
    phases: tuple[str, ...] = ()
    """Those of which it told, in their order."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a cell. again: the program, started again, where the fault ended it."""

    hit: bool
    first: Ended
    again: Ended | None = None
    found: Found
    books: JudgeBooks
    orphans: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Files of the run that a replay changed, made or removed."""

    @property
    def last(self) -> Ended:
        return self.again or self.first


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """ending: `equal`, `fewer rollouts`, `no end` or the name of the error. flaws: why the cell fails."""

    ending: str
    flaws: tuple[str, ...]


def examine(path: Path) -> Found:
    """Reads the folder of a run whose processes have ended."""
    home = path / PROJECT / "models" / NAME
    checkpoints = {int(one.name): one for one in home.glob("checkpoints/[0-9]*")}
    sheet = _last_sheet(checkpoints)
    rows = home / "history.jsonl"
    lines = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    return Found(
        weights={step: _digest(folder) for step, folder in sorted(checkpoints.items())},
        logged=[row["step"] for row in lines if "data/sheet/started_rollouts" in row],
        kept=sorted(int(one.stem) for one in home.glob("trajectories/train/*.parquet")),
        trained=_trained(path / "server" / "jobs.sqlite"),
        outcomes={name: row["rollouts"] for name, row in sheet.get("fates", {}).items()},
        started=sheet.get("started", {}).get("rollouts", 0),
        half_written=sorted(
            {str(one.relative_to(path)) for mark in HALF_WRITTEN for one in path.rglob(mark)}
        ),
    )


def contents(path: Path) -> dict[str, str]:
    """SHA-256 of each file of a run, by its path below it."""
    files = sorted(one for one in path.rglob("*") if one.is_file())
    return {str(one.relative_to(path)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for name in WEIGHTS:
        with contextlib.suppress(FileNotFoundError):
            found.update((folder / name).read_bytes())
    return found.hexdigest()


def _last_sheet(checkpoints: dict[int, Path]) -> dict[str, dict[str, dict[str, int]]]:
    file = checkpoints.get(max(checkpoints, default=0), Path()) / "job.json"
    return dict(json.loads(file.read_text())["result"]["sheet"]) if file.exists() else {}


def _trained(jobs: Path) -> list[int]:
    if not jobs.exists():
        return []
    with contextlib.closing(sqlite3.connect(jobs)) as file:
        return [row[0] for row in file.execute("SELECT step FROM jobs WHERE state = 'done' ORDER BY number")]


def judge(cell: Cell, outcome: Outcome, calm: Outcome, *, bound_s: float) -> Verdict:
    """calm: the undisturbed run. bound_s: seconds from the fault in which the run ends."""
    flaws = list(_of_ending(cell, outcome, bound_s))
    flaws += _of_steps(outcome.found)
    flaws += _of_books(outcome.books)
    if outcome.orphans:
        flaws.append(f"outlived the run: {'; '.join(outcome.orphans)}")
    if outcome.found.half_written:
        flaws.append(f"left half-written: {', '.join(outcome.found.half_written)}")
    if outcome.changed:
        flaws.append(f"the replay changed the run: {', '.join(outcome.changed)}")
    found, wanted = outcome.found.weights, calm.found.weights
    fewer = cell.may_lose_rollouts and LOST & set(outcome.found.outcomes)
    last = {STEPS} if fewer else set()
    differ = [step for step in sorted({*found, *wanted} - last) if found.get(step) != wanted.get(step)]
    if differ:
        flaws.append(f"weights of the steps {differ} differ from the undisturbed run's")
    if outcome.last.evaluated != calm.last.evaluated and not fewer:
        flaws.append("the evaluation's replies differ from the undisturbed run's")
    ending = outcome.first.error or (FEWER if fewer else EQUAL)
    return Verdict(ending=NO_END if outcome.first.status is None else ending, flaws=tuple(flaws))


def _of_ending(cell: Cell, outcome: Outcome, bound_s: float) -> Iterator[str]:
    first, again = outcome.first, outcome.again
    if first.status is None:
        yield f"no end {first.seconds:.0f} s after the fault"
    elif first.error and not first.is_ours:
        yield f"ended by {first.error}, which is no error of ours: {first.message[:MOST_MESSAGE]}"
    elif first.error and first.seconds > BOUND_S:
        yield f"{first.error} came after {first.seconds:.0f} s"
    elif first.status and not first.error and cell.component != "client":
        yield f"ended with status {first.status} and no error"
    elif not first.status and first.seconds > bound_s:
        yield f"ended {first.seconds:.0f} s after the fault, over {bound_s:.0f} s"
    if again is not None and again.status != 0:
        yield f"started again, it ended with {again.status}: {again.error} {again.message[:MOST_MESSAGE]}"
    if outcome.last.status == 0 and outcome.last.steps != STEPS:
        yield f"made {outcome.last.steps} steps of {STEPS}"


def _of_books(books: JudgeBooks) -> Iterator[str]:
    if books.again:
        yield f"the judge was paid twice for {books.again} of {books.recorded} recorded answers"
    if books.unheard or not books.recorded:
        yield f"{books.recorded} answers of the judge are recorded, {books.unheard} of them not in its log"


def _of_steps(found: Found) -> Iterator[str]:
    wanted = list(range(1, STEPS + 1))
    for name, steps in (
        ("jobs have made", found.trained),
        ("history.jsonl has", found.logged),
        ("trajectories are kept of", found.kept),
    ):
        if steps != wanted:
            twice = [step for step, count in Counter(steps).items() if count > 1]
            yield f"{name} the steps {steps}, not {wanted}" + (f"; twice: {twice}" if twice else "")
    if found.started != sum(found.outcomes.values()):
        yield f"the sheet does not balance: {found.started} started, {found.outcomes}"
