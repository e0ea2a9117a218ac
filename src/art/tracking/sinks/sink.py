"""What a tracker is to ART: a run that is opened, told rows, tables and its config, and closed.

sink = TensorBoardSink()
sink.open(run, config)                  starts the run, or goes on with the one of an earlier process
sink.log(7, {"train/reward": 0.5})      has reached the tracker when the call returns
sink.close()
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from art.tracking.nested_settings import named_leaves
from art.types import is_choice, known_reward, sample_id
from art.wire.quoting import writable
from art.wire.rollout_record import LONGEST_REASON, cut

if TYPE_CHECKING:
    from art.backend import AnyModel
    from art.trajectories import TrajectoryGroup

LONGEST_TEXT = 20_000
"""Characters of a conversation in a table; the rest is left out."""
NOT_METRICS = frozenset({"step", "recorded_at"})
"""Columns of `history.jsonl` that a tracker has of its own."""


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """The identity of a run: a later process that names the same one goes on with it.

    run_id None: the name says which. folder: the model's own.
    """

    entity: str | None
    project: str
    name: str
    run_id: str | None
    folder: Path

    @property
    def digest(self) -> str:
        """Returns 16 characters that no other entity, project and run have."""
        return digest("\0".join((self.entity or "", self.project, self.run_id or self.name)), 16)


class Sink(Protocol):
    """One run at one tracker. Its methods are called by one thread, one after another.

    They may block and raise: the caller (`art.tracking.sinks.registry`) bounds both. A sink may also have

        is_local = True                      it sends nothing anywhere: it is shown a few trajectories unasked
        rollouts(split, step, groups)        it takes every rollout
        checkpoint(step, files)              it keeps the adapter of a step
    """

    def open(self, run: ReportedRun, config: Mapping[str, Any]) -> None:
        """Starts the run, or goes on with it. Loads the tracker's library."""

    def config(self, values: Mapping[str, Any]) -> None:
        """Adds to the run's config."""

    def log(self, step: int, row: Mapping[str, float]) -> None:
        """Reports finite numbers of a training step. Steps may come out of order, and again."""

    def table(self, name: str, step: int, rows: Sequence[TableRow]) -> None:
        """Reports trajectories of a training step."""

    def close(self) -> None:
        """Writes what is left and ends the run."""


class ImmediateSink(Protocol):
    """W&B, by the name `wandb`: it is called in the program's thread, with the rows as they are, and what it
    raises reaches the program.
    """

    given_up: bool
    """Whether it failed, and takes no more rows of a model that did not name it."""

    def open(self, model: AnyModel, config: Mapping[str, Any]) -> Any:
        """Returns the run, started if it is not open."""

    def configure(self, model: AnyModel, config: Mapping[str, Any]) -> None:
        """Adds to the config of the run, if it is open."""

    def log(
        self,
        model: AnyModel,
        config: Mapping[str, Any],
        row: Mapping[str, Any],
        tables: Mapping[str, Sequence[TableRow]],
        history: Callable[[], Iterable[Mapping[str, Any]]],
    ) -> None:
        """Reports a row. history: all rows so far, this one included."""

    def checkpoint(
        self, model: AnyModel, config: Mapping[str, Any], step: int, files: Sequence[Path]
    ) -> None:
        """Keeps the adapter of a step."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One trajectory of a table. reward None: unscored."""

    group: int
    place: int
    reward: float | None
    text: str


def digest(text: str, length: int = 8) -> str:
    """Returns the beginning of the text's SHA-256 in hexadecimal; unpaired surrogates are no obstacle."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def safe_name(name: str, unsafe: re.Pattern[str], longest: int) -> str:
    """Returns a name that a tracker takes: the same if it can, else with a digest, so that two stay apart.

    unsafe: what is replaced by "_".
    """
    parts = [part for part in unsafe.sub("_", writable(name)).split("/") if part.strip(". ")]
    safe = "/".join(parts)[:longest]
    return safe if safe == name else f"{safe[: longest - 9]}-{digest(name)}"


def finite(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a row of the history that a tracker can draw."""
    numbers = {name: value for name, value in row.items() if name not in NOT_METRICS}
    return {
        name: float(value)
        for name, value in numbers.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def flat(config: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Returns a config with one level: `{"lr": {"peak": 0.1}}` becomes `{"lr.peak": 0.1}`."""
    return {
        writable(name): value if isinstance(value, (bool, int, float)) else writable(str(value))
        for name, value in named_leaves(config)
    }


def sample_rows(groups: Iterable[TrajectoryGroup], most: int) -> list[TableRow]:
    """Returns at most so many trajectories: the first of each group, then the second of each, and so on."""
    places = sorted(
        ((place, number, one) for number, group in enumerate(groups) for place, one in enumerate(group)),
        key=lambda found: found[:2],
    )
    return [
        TableRow(
            group=number,
            place=place,
            reward=known_reward(one),
            text=writable(_conversation(one))[:LONGEST_TEXT],
        )
        for place, number, one in places[:most]
    ]


def _conversation(trajectory: Any) -> str:
    turns = []
    for item, message in zip(trajectory.messages_and_choices, trajectory.messages(), strict=True):
        sample = str(sample_id(item)) if is_choice(item) else ""
        reward, why = trajectory.turn_rewards.get(sample), trajectory.turn_reasons.get(sample)
        reason = "" if why is None else f": {cut(why, LONGEST_REASON)}"
        earned = "" if reward is None else f" (reward {reward:g}{reason})"
        calls = [call["function"] for call in message.get("tool_calls") or () if "function" in call]
        texts = [f"{call.get('name')}({call.get('arguments')})" for call in calls]
        content = message.get("content")
        turns.append(
            f"{message.get('role')}{earned}: " + " ".join([*([str(content)] if content else []), *texts])
        )
    return "\n\n".join(turns)
