"""Trajectory groups as JSON lines.

The older logs have one group a line, without log probabilities:

    {"trajectories": [{"reward": 1.0, "metrics": {}, "metadata": {}, "messages_and_choices": [...],
                       "tools": null, "additional_histories": [], "logs": []}]}

What older programs did not write (exceptions, metadata of the group, policy versions, further fields) is
written only where there is any; they ignore it. Exact lines lose nothing, and are written where Parquet
files cannot be:

    {"exact": true, "trajectories": [{"reward": 1.0, "messages_and_choices": [...], ...}],
     "exceptions": [...], "metadata": {}, "metrics": {}, "logs": []}

They have the same shape, with all fields and with log probabilities. Lines are only added. A line that a
killed process left unfinished has no newline; it is no group, and the next writer removes it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art.errors import TrajectoryLogError
from art.process.files import PRIVATE
from art.process.foreign_files import parse_json, read_foreign
from art.tracking.folders import lock_folder
from art.tracking.trajectory_rows import all_fields, as_item, build_record, from_text, revive_fields, to_text
from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup

GROUP_EXTRAS = ("metadata", "metrics", "logs", "exceptions")
ALWAYS = frozenset(
    {"reward", "metrics", "metadata", "messages_and_choices", "tools", "additional_histories", "logs"}
)


def serialize_trajectory_groups(groups: Iterable[TrajectoryGroup]) -> str:
    """Groups as JSON lines."""
    return "\n".join(to_text(trajectory_group_to_dict(group)) for group in groups)


def deserialize_trajectory_groups(serialized: str) -> list[TrajectoryGroup]:
    """Groups from JSON lines. Raises TrajectoryLogError that names the line which is no group."""
    groups = []
    # Not `splitlines`: it also splits at characters that JSON allows inside of strings.
    for number, line in enumerate(serialized.split("\n"), 1):
        if not line.strip():
            continue
        try:
            groups.append(dict_to_trajectory_group(from_text(line)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TrajectoryLogError(f"line {number} is no group of trajectories: {error!r}") from error
    return groups


def trajectory_group_to_dict(group: TrajectoryGroup) -> dict[str, Any]:
    """A group as plain values."""
    trajectories = [trajectory_to_dict(trajectory) for trajectory in group.trajectories]
    extras = {name: getattr(group, name) for name in GROUP_EXTRAS if getattr(group, name)} | _weight(group)
    return {"trajectories": trajectories, **_plain(extras)}


def _weight(group: TrajectoryGroup) -> dict[str, float]:
    return {"weight": group.weight} if group.weight != 1 else {}


def dict_to_trajectory_group(
    data: Mapping[str, Any], trajectory_class: type[Trajectory] = Trajectory
) -> TrajectoryGroup:
    """The group of `trajectory_group_to_dict`."""
    return TrajectoryGroup(
        [dict_to_trajectory(one, trajectory_class) for one in data["trajectories"]],
        exceptions=[PydanticException.model_construct(**error) for error in data.get("exceptions") or ()],
        metadata=data.get("metadata"),
        metrics=data.get("metrics"),
        logs=data.get("logs"),
        weight=data.get("weight", 1.0),
    )


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as plain values, choices without log probabilities."""
    fields = all_fields(trajectory)
    if not trajectory.exchanges:
        del fields["exchanges"]
    values = {name: value for name, value in fields.items() if name in ALWAYS or value is not None}
    values["messages_and_choices"] = [message_or_choice_to_dict(i) for i in trajectory.messages_and_choices]
    values["additional_histories"] = [history_to_dict(one) for one in trajectory.additional_histories]
    plain: dict[str, Any] = _plain(values)
    return plain


def dict_to_trajectory(
    data: Mapping[str, Any], trajectory_class: type[Trajectory] = Trajectory
) -> Trajectory:
    """The trajectory of `trajectory_to_dict`. Fields that `Trajectory` lacks are attributes."""
    data = {"messages_and_choices": [], "reward": None, **data}
    nothing = {
        name for name in ("metrics", "metadata", "logs", "additional_histories") if data.get(name) is None
    }
    fields = {name: revive_fields(name, value) for name, value in data.items() if name not in nothing}
    return build_record(fields, trajectory_class)


def history_to_dict(history: History) -> dict[str, Any]:
    """A further conversation as plain values."""
    turns = [message_or_choice_to_dict(item) for item in history.messages_and_choices]
    return {"messages_and_choices": turns, "tools": _plain(history.tools)}


def dict_to_history(data: Mapping[str, Any]) -> History:
    """The history of `history_to_dict`."""
    [history] = revive_fields("additional_histories", [data])
    return history  # type: ignore[no-any-return]


def message_or_choice_to_dict(message_or_choice: Any) -> dict[str, Any]:
    """A turn as plain values, without log probabilities."""
    plain: dict[str, Any] = _plain(message_or_choice)
    if "finish_reason" in plain:
        plain.pop("logprobs", None)
    return plain


def dict_to_message_or_choice(data: Mapping[str, Any]) -> Any:
    """The turn of `message_or_choice_to_dict`: a dict, or a choice if it was one."""
    return as_item(dict(data))


def _plain(value: Any) -> Any:
    return from_text(to_text(value))


_log = logging.getLogger(__name__)

EXACT_MARK = b'{"exact": true, '
"""How our lines begin. Others beside a Parquet file are what it was made from."""


@dataclass(frozen=True, kw_only=True)
class TakenLines:
    """The beginning of a file whose groups are elsewhere now: so many bytes, with this SHA-256."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ExactLines:
    """The content of a file. taken: its complete lines; torn: bytes of an unfinished one after them."""

    groups: list[TrajectoryGroup]
    complete: TakenLines
    torn: int


def exact_line(group: TrajectoryGroup) -> str:
    """One line, without its newline."""
    record = {
        "exact": True,
        "trajectories": [all_fields(trajectory) for trajectory in group.trajectories],
        "exceptions": group.exceptions,
        "metadata": group.metadata,
        "metrics": group.metrics,
        "logs": group.logs,
    } | _weight(group)
    return to_text(record)


def append_lines(path: Path, groups: Iterable[TrajectoryGroup]) -> None:
    """Add groups to a file, which is made if it is not there. Several processes may do so at once.

    Raises: OSError (what was there before is there still), DeadlineError when another process holds the
    folder's lock for too long.
    """
    content = "".join(exact_line(group) + "\n" for group in groups).encode()
    with lock_folder(path.parent):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, PRIVATE)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                size, content = _close_last_line(path, descriptor, content)
            try:
                _write_lines(descriptor, content)
            except BaseException:
                with suppress(OSError):  # the first error is the one to tell
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def read_lines(
    path: Path,
    trajectory_class: type[Trajectory] = Trajectory,
    *,
    own_lines_only: bool = False,
    after: TakenLines | None = None,
) -> ExactLines:
    """The groups of a file, ours or of an older program.

    own_lines_only: leave out foreign lines and those of `after`, which the Parquet file beside it has.

    Raises: TrajectoryLogError that names the line which is no group, OSError, UnreadableFileError.
    """
    data = read_foreign(path)
    complete = _complete_lines_size(data)
    start = after.size if own_lines_only and after is not None and _begins_with(data, after) else 0
    groups = []
    for number, line in enumerate(data[start:complete].split(b"\n"), 1 + data.count(b"\n", 0, start)):
        if line.strip() and (not own_lines_only or line.startswith(EXACT_MARK)):
            groups.append(_group(line, number, trajectory_class))
    taken = TakenLines(size=complete, sha256=hashlib.sha256(data[:complete]).hexdigest())
    return ExactLines(groups=groups, complete=taken, torn=len(data) - complete)


def _group(line: bytes, number: int, trajectory_class: type[Trajectory]) -> TrajectoryGroup:
    try:
        data = from_text(line.decode())
        read = _exact_group if line.startswith(EXACT_MARK) else dict_to_trajectory_group
        return read(data, trajectory_class)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        wanted = "" if trajectory_class is Trajectory else f" as {trajectory_class.__name__}"
        raise TrajectoryLogError(
            f"line {number} is no group of trajectories{wanted}: {error!r:.500}"
        ) from error


def _exact_group(data: dict[str, Any], trajectory_class: type[Trajectory]) -> TrajectoryGroup:
    trajectories = [
        build_record({name: revive_fields(name, value) for name, value in fields.items()}, trajectory_class)
        for fields in data["trajectories"]
    ]
    # As it was written: what was valid then is not judged again.
    return TrajectoryGroup.model_construct(
        trajectories=trajectories,
        exceptions=[PydanticException.model_construct(**error) for error in data.get("exceptions") or ()],
        metadata=data.get("metadata") or {},
        metrics=data.get("metrics") or {},
        logs=data.get("logs") or [],
        weight=data.get("weight", 1.0),
    )


def _begins_with(data: bytes, prefix: TakenLines) -> bool:
    return len(data) >= prefix.size and hashlib.sha256(data[: prefix.size]).hexdigest() == prefix.sha256


def _complete_lines_size(data: bytes) -> int:
    """The size of the complete lines. A last line of an older program may lack its newline."""
    end = data.rfind(b"\n") + 1
    return len(data) if _is_json(data[end:]) else end


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _close_last_line(path: Path, descriptor: int, content: bytes) -> tuple[int, bytes]:
    """Returns the length of the file to keep, and the text to write next, after a line without a newline."""
    data = path.read_bytes()
    size = _complete_lines_size(data)
    if size == len(data):
        return size, b"\n" + content
    _log.warning("%d bytes of a line that a killed process left in %s are removed", len(data) - size, path)
    os.ftruncate(descriptor, size)
    return size, content


def _write_lines(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)
