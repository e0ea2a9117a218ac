"""One row for each rollout of a step, from the step's record and from the log of its trajectories.

Each of the two may be missing: older runs have no record, a program that logs nothing has no trajectories.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from art.errors import ARTError
from art.process.foreign_files import parse_json
from art.tracking.step_record import read_rollouts
from art.tracking.trajectory_log import has_polars, lines_of_step, read_stored
from art.trajectories import TrajectoryGroup
from art.types import Unscored, get_messages, is_choice, text_of_content
from art.wire.rollout_record import RolloutRecord
from art_extensions.ui.run_files import RunFiles

ABOUT = 160
"""Characters of the first message that a list shows."""
_COLUMNS = (
    "group_index",
    "reward",
    "metadata",
    "group_metadata",
    "messages",
    "unscored_reason",
    "rollout_id",
)


class ListedRollout(NamedTuple):
    """One rollout in a list. None: not recorded."""

    split: str
    step: int
    grp: int
    """The number of its group."""
    place: int
    """Its place in the group."""
    rollout: str | None
    scenario: str | None
    about: str | None
    """The beginning of the first message of a user."""
    reward: float | None
    unscored: str | None
    """Why there is no reward, or the exception that ended it."""
    fate: str | None
    advantage: float | None
    tokens: int | None
    turns: int | None
    forks: int | None
    truncated: int | None
    seconds: float | None
    logged: int
    """1 where its conversation is logged."""


def rows_of_step(run: RunFiles, split: str, step: int) -> list[ListedRollout]:
    """Returns the rollouts of a step, group by group. A file that cannot be read has none."""
    rows: list[ListedRollout] = []
    with suppress(ARTError, OSError, ValueError):
        rows = list(_logged_rows(run, split, step))
    if split != "train":
        return rows
    records: list[RolloutRecord] = []
    with suppress(ARTError, OSError, ValueError):
        records = read_rollouts(run.files.path, step)
    return _joined(rows, records, step)


def _joined(rows: list[ListedRollout], records: list[RolloutRecord], step: int) -> list[ListedRollout]:
    """The logged rows with what is recorded of them, then the recorded ones that no log has."""
    by_name = {one.rollout: one for one in records}
    by_place = {(one.group, one.place): one for one in records}
    joined, used = [], set()
    for row in rows:
        record = by_name.get(row.rollout or "") or by_place.get((row.grp, row.place))
        if record is None or id(record) in used:
            joined.append(row)
            continue
        used.add(id(record))
        joined.append(_with_record(row, record))
    taken = {(row.grp, row.place) for row in joined}
    for one in records:
        if id(one) not in used and (one.group, one.place) not in taken:
            empty = ListedRollout("train", step, one.group, one.place, *(None,) * 12, 0)
            joined.append(_with_record(empty, one))
    return sorted(joined, key=lambda row: (row.grp, row.place))


def _with_record(row: ListedRollout, record: RolloutRecord) -> ListedRollout:
    failure = record.failure and f"{record.failure.type}: {record.failure.message}"
    return row._replace(
        rollout=record.rollout,
        scenario=record.scenario if record.scenario is not None else row.scenario,
        reward=record.reward,
        unscored=failure or record.unscored_reason or row.unscored,
        fate=record.fate,
        advantage=record.advantage,
        tokens=record.tokens,
        turns=record.turns,
        forks=sum(record.forks.values()),
        truncated=int(record.truncated),
        seconds=record.seconds,
    )


def _logged_rows(run: RunFiles, split: str, step: int) -> Iterator[ListedRollout]:
    log = run.log.path(split, step)
    first = 0
    if log.exists() and has_polars():
        places: dict[int, int] = {}
        for row in read_stored(log, _COLUMNS).frame.iter_rows(named=True):
            group = row["group_index"] or 0
            place = places[group] = places.get(group, -1) + 1
            yield _row_of_columns(split, step, group, place, row)
        first = max(places, default=-1) + 1
    if (lines := log.with_suffix(".jsonl")).exists():
        for group, found in enumerate(lines_of_step(lines), first):
            yield from _rows_of_group(split, step, group, found)


def _row_of_columns(split: str, step: int, group: int, place: int, row: dict[str, Any]) -> ListedRollout:
    facts = _object(row.get("group_metadata")) | _object(row.get("metadata"))
    turns = row["messages"] or []
    asked = next((one["content"] for one in turns if one and one["role"] == "user"), None)
    return ListedRollout(
        split, step, group, place, row.get("rollout_id"), _scenario(facts), asked and asked[:ABOUT],
        None if row.get("unscored_reason") else row["reward"], row.get("unscored_reason"), None, None, None,
        sum(bool(one and one["trainable"]) for one in turns), None, None, None, 1,
    )  # fmt: skip


def _rows_of_group(split: str, step: int, group: int, found: TrajectoryGroup) -> Iterator[ListedRollout]:
    for place, one in enumerate(found):
        messages = get_messages(one.messages_and_choices)
        asked = next((text_of_content(m.get("content")) for m in messages if m.get("role") == "user"), None)
        unscored = one.reward.reason if isinstance(one.reward, Unscored) else None
        reward = None if isinstance(one.reward, Unscored) else one.reward
        turns = sum(is_choice(item) for item in one.messages_and_choices)
        yield ListedRollout(
            split, step, group, place, one.rollout_id, _scenario({**found.metadata, **one.metadata}),
            asked and asked[:ABOUT], reward, unscored, None, None, None, turns, None, None, None, 1,
        )  # fmt: skip


def _scenario(facts: dict[str, Any]) -> str | None:
    """The scenario's id, as programs write it into the metadata."""
    found = next(
        (facts[name] for name in ("scenario_id", "scenario", "id") if facts.get(name) is not None), None
    )
    return None if found is None else str(found)[:ABOUT]


def _object(text: str | None) -> dict[str, Any]:
    value = parse_json(text) if text else {}
    return value if isinstance(value, dict) else {}
