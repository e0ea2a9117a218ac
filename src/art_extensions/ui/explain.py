"""Says where a run breaks first: the signatures of `art_extensions.ui.signatures`, in the order of the chain.

    scenario -> rollout -> reward -> group -> gradient -> promotion

A later stage that looks ill is often a consequence of an earlier one, so the first is the one to mend.
`explain` reads files only: no server has to run. `RunWatch` tells the same findings in the log while a run
trains.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from art.errors import ConfigurationError, UnreadableFileError
from art.tracking.folders import ModelPaths, find_model, lock_folder, model_folders
from art.tracking.model_files import append_history_row, read_history
from art.tracking.step_record import read_rollouts
from art.wire.rollout_record import RolloutRecord, cut
from art_extensions.ui.conversation import visible
from art_extensions.ui.run_table import Found, HistoryRows, RunTable
from art_extensions.ui.signatures import CAUSES, LAST_RESORT, SIGNATURES, Signature

MOST_EXAMPLES = MOST_REASONS = 3
"""Rollouts that are shown for a finding, and reasons of the turns of one."""
LONGEST_SHOWN = 200
LOOK_EVERY, FIRST_ROWS, LAST_ROWS = 5, 12, 28
"""Steps between two looks at a run that trains; steps of its beginning and of its end that a look sees."""
PAGES_PORT = 8765
"""The port of `art ui` in the links to examples."""
PATIENCE_S = 5.0
"""The seconds that the watch, and with it a training, waits for another writer of the folder."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Example:
    step: int
    group: int
    place: int
    rollout: str
    reward: float | None
    fate: str
    page: str
    """The address of its page in `art ui`, opened for the data folder."""
    reasons: tuple[str, ...] = ()
    """Why its turns earned what they did: those of the largest rewards, in the order of the turns."""


@dataclass(frozen=True)
class RunFinding:
    """One signature that a run shows."""

    number: int
    stage: str
    words: str
    change: str
    steps: tuple[int, ...]
    examples: tuple[Example, ...] = ()
    quote: str | None = None
    """A text of the run itself, such as its most frequent exception."""

    def sentence(self) -> str:
        """Returns what was found, with its quote."""
        return self.words if self.quote is None else f"{self.words}, most often {self.quote!r}"


@dataclass(frozen=True)
class Explanation:
    """The findings of a run in the order of the chain; the first is the cause to look at."""

    run: str
    steps: int
    findings: tuple[RunFinding, ...] = ()
    data_dir: str = ".art"
    """The folder that has the run, for `art ui`."""

    def as_json(self) -> dict[str, Any]:
        """Returns plain values: `first_broken_stage` (None: nothing was found) and `findings`."""
        first = self.findings[0].stage if self.findings else None
        return {"run": self.run, "steps": self.steps, "first_broken_stage": first} | {
            "findings": [asdict(one) for one in self.findings]
        }

    def text(self) -> str:
        """Returns the lines for a terminal."""
        if not self.findings:
            return f"{self.run}: nothing found in {self.steps} steps."
        first = self.findings[0]
        lines = [f"{self.run}: {self.steps} steps. The first broken stage is: {first.stage}.", ""]
        for finding in self.findings:
            if finding is not first and finding is self.findings[1]:
                lines += ["", "Also found. It may be a consequence:"]
            where = f"steps {finding.steps[0]} to {finding.steps[-1]}"
            lines += [f"  {finding.stage}: {finding.sentence()} ({where})", f"    Change: {finding.change}"]
            for one in finding.examples:
                lines += [
                    f"    Example: step {one.step}, group {one.group}, rollout {one.place} ({one.rollout}): "
                    f"reward {one.reward}, {one.fate}",
                    *(f"      {reason}" for reason in one.reasons),
                    f"      http://127.0.0.1:{PAGES_PORT}{one.page}",
                ]
        if any(finding.examples for finding in self.findings):
            command = pages_command(self.data_dir)
            lines += [
                "",
                f"To open an example, run `{command} --port {PAGES_PORT}`, open the address that it",
            ]
            lines += ["prints, and then the example's."]
        return "\n".join(lines)


def pages_command(data_dir: str) -> str:
    """Returns the command that shows the runs of a data folder."""
    return "art ui" if data_dir == ".art" else f"art ui {shlex.quote(data_dir)}"


def explain(run: str, data_dir: Path = Path(".art")) -> Explanation:
    """Returns what the signatures find.

    run: `project/name` in the data folder, the folder of a model, or a folder that holds one model alone.
    Raises ConfigurationError where there is no such model, or no step of training.
    """
    return explain_model(model_folder(run, data_dir), run)


def explain_model(folder: Path, run: str) -> Explanation:
    """`explain` for the folder of a model. run: its name in what is said."""
    rows, path = HistoryRows(), ModelPaths(folder).history
    for row in read_history(path):
        try:
            rows.add(row)
        except OverflowError as error:
            raise UnreadableFileError(f"{path}, step {row['step']}: a number is too large") from error
    return explain_rows(folder, run, rows)


def explain_rows(folder: Path, run: str, rows: HistoryRows) -> Explanation:
    """`explain_model` for a history that is read already."""
    table = RunTable.of_rows(folder, rows)
    if not table.train:
        raise ConfigurationError(
            f"{folder} has no training step in history.jsonl: nothing can be explained before the first "
            "`model.train` or `model.log`"
        )
    findings = tuple(_with_examples(table, one) for one in _findings(table))
    return Explanation(run, len(table.train), findings, str(_data_dir(folder)))


def model_folder(run: str, data_dir: Path) -> Path:
    """Returns the folder of the model that `explain` means. Raises ConfigurationError."""
    path = Path(run)
    if not path.is_dir():
        return find_model(run, data_dir).files.path
    if ModelPaths(path).history.exists():
        return path
    found = [one for root in (path, path / "art", path / ".art") for one in model_folders(root).values()]
    if len(found) != 1:
        there = ", ".join(map(str, found)) or "none"
        raise ConfigurationError(f"{run!r} must hold one model; found: {there}. Name the folder of one")
    return found[0]


@dataclass(frozen=True)
class _Sight:
    """A finding before its examples are looked up."""

    signature: Signature
    found: Found

    def finding(self) -> RunFinding:
        """Returns it without examples."""
        one, found = self.signature, self.found
        change = found.change or one.change
        return RunFinding(one.number, one.stage, found.words, change, found.steps, quote=found.quote)


def _findings(table: RunTable, reported: Collection[int] = ()) -> list[_Sight]:
    """Returns what the signatures see, except those that were reported, in the order of the chain.

    What another signature causes comes last, unless it was there before (`CAUSES`).
    """
    seen = [
        _Sight(one, found)
        for one in SIGNATURES
        if one.number not in reported and (found := one.look(table)) is not None
    ]
    if reported or len(seen) > 1:
        seen = [one for one in seen if one.signature.number != LAST_RESORT]
    for number, cause in CAUSES.items():
        at = next((one for one in seen if one.signature.number == number), None)
        if at is not None:
            sound = table.until(cause.first_steps or at.found.steps[0] - 1)
            caused = {
                one.signature.number
                for one in seen
                if one.signature.number in cause.numbers and one.signature.look(sound) is None
            }
            seen.sort(key=lambda one: one.signature.number in caused)
    return seen


def _with_examples(table: RunTable, sight: _Sight) -> RunFinding:
    """The finding with the rollouts of its steps that show it best."""
    found, folder = sight.found, table.files.path
    fitting = [
        (step, record)
        for step in found.steps
        for record in read_rollouts(folder, step)
        if found.is_example(record)
    ]
    fitting.sort(key=lambda pair: -found.rank(pair[1]))
    examples = tuple(
        Example(
            step, one.group, one.place, one.rollout, one.reward, one.fate,
            page_address(folder, step, one.group, one.place), _reasons(one),
        )
        for step, one in fitting[:MOST_EXAMPLES]
    )  # fmt: skip
    return replace(sight.finding(), examples=examples)


def _reasons(record: RolloutRecord) -> tuple[str, ...]:
    rewards = record.by_sample(record.turn_rewards)
    turns = [
        (turn, rewards.get(sample, 0.0), record.turn_reasons[sample])
        for turn, sample in enumerate(record.samples, 1)
        if sample in record.turn_reasons
    ]
    top = sorted(turns, key=lambda one: -abs(one[1]))[:MOST_REASONS]
    return tuple(
        f"turn {turn} earned {reward:g}: {visible(cut(' '.join(why.split()), LONGEST_SHOWN))}"
        for turn, reward, why in sorted(top)
    )


def page_address(folder: Path, step: int, group: int, place: int) -> str:
    """Returns the path of a rollout's page in `art ui`, opened for the data folder of the model's folder."""
    project, name = (quote(part, safe="") for part in (folder.absolute().parents[1].name, folder.name))
    return f"/runs/-/{project}/{name}/train/{step}/{group}/{place}"


def _data_dir(folder: Path) -> Path:
    """The data folder of a model's folder, as short as it can be said here."""
    data_dir = folder.absolute().parents[2]
    return data_dir.relative_to(Path.cwd()) if data_dir.is_relative_to(Path.cwd()) else data_dir


@dataclass
class RunWatch:
    """The findings of a run that trains, each reported once in its log.

    It looks at a new step every `LOOK_EVERY` steps. What was reported is in `findings.jsonl` beside the
    history, so a run that goes on does not report it again. It never raises: a failure is one warning.
    """

    folder: Path | None = None
    rows: HistoryRows = field(default_factory=HistoryRows)
    reported: set[int] = field(default_factory=set)
    _count: int = 0
    """Steps since the last look."""
    _newest: int = -1
    _failed: bool = False

    def see(self, folder: Path, row: Mapping[str, Any]) -> None:
        """Takes a row that was written to the history of a model's folder, and looks if it is time."""
        if self._failed:
            return
        try:
            self._see(folder, row)
        except Exception as error:  # noqa: BLE001 - what only observes must not end a training
            self._failed = True
            _log.warning("the findings of %s are no longer looked for: %s", folder.name, error)

    def _see(self, folder: Path, row: Mapping[str, Any]) -> None:
        if folder != self.folder:
            self.folder, self.rows, self.reported = folder, HistoryRows(), set()
            self._count, self._newest = 0, -1
            for known in read_history(ModelPaths(folder).history):  # this row among them
                self._take(known)
            self.reported = {int(one["number"]) for one in read_history(ModelPaths(folder).findings)}
        elif not self._take(row):
            return
        if self._count >= LOOK_EVERY:
            self._count = 0
            self._report(folder)

    def _take(self, row: Mapping[str, Any]) -> bool:
        """Adds a row. Returns whether it begins a step of training."""
        self.rows.add(row)
        for rows in (self.rows.train, self.rows.val):
            if len(rows) > FIRST_ROWS + LAST_ROWS:
                del rows[[*rows][FIRST_ROWS]]
        step = row.get("step")
        if (
            not isinstance(step, int)
            or step <= self._newest
            or not any(name.startswith("train/") for name in row)
        ):
            return False
        self._newest = step
        self._count += 1
        return True

    def _report(self, folder: Path) -> None:
        table = RunTable.of_rows(folder, self.rows, is_complete=False)
        seen = _findings(table, self.reported)
        if not seen:
            return
        paths = ModelPaths(folder)
        with lock_folder(folder, PATIENCE_S):
            self.reported |= {int(one["number"]) for one in read_history(paths.findings)}
            new = [one.finding() for one in seen if one.signature.number not in self.reported]
            for one in new:
                said = {"step": self._newest, "number": one.number, "stage": one.stage, "words": one.words}
                append_history_row(paths.findings, said)
                self.reported.add(one.number)
        for one in new:
            _log.warning(
                "%s: %s (signature %d): %s -> art explain %s",
                *(one.stage, one.sentence(), one.number, one.change, _shell_name(folder)),
            )


def _shell_name(folder: Path) -> str:
    """The run as a command line here names it."""
    data_dir = _data_dir(folder)
    if data_dir == Path(".art"):
        return shlex.quote(f"{folder.absolute().parents[1].name}/{folder.name}")
    return shlex.quote(str(data_dir / Path(*folder.absolute().parts[-3:])))
