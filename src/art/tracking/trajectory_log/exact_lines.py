"""Groups as JSON lines that lose nothing: what is logged where Parquet files cannot be written.

    {"exact": true, "trajectories": [{"reward": 1.0, "messages_and_choices": [...], ...}],
     "exceptions": [...], "metadata": {}, "metrics": {}, "logs": []}

The shape is that of the older logs, with all fields, and with log probabilities. Lines are only added. One
that a killed process left unfinished has no newline; it is no group, and the next writer removes it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art.errors import TrajectoryLogError
from art.tracking.folder_lock import locked
from art.tracking.trajectory_log.json_lines import dict_to_trajectory_group
from art.tracking.trajectory_log.json_text import from_text, to_text
from art.tracking.trajectory_log.rows import all_fields, build, revive
from art.trajectories import PydanticException, Trajectory, TrajectoryGroup

_log = logging.getLogger(__name__)

MARK = b'{"exact": true, '
"""How our lines begin. Others beside a Parquet file are what it was made from."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The beginning of a file whose groups are elsewhere now: so many bytes, with this SHA-256."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Lines:
    """What a file holds. taken: its complete lines; torn: bytes of an unfinished one after them."""

    groups: list[TrajectoryGroup]
    taken: Taken
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
    }
    return to_text(record)


def append_lines(path: Path, groups: Iterable[TrajectoryGroup]) -> None:
    """Add groups to a file, which is made if it is not there. Several processes may do so at once.

    Raises: OSError (what was there before is there still), DeadlineError when another process holds the
    folder's lock for too long.
    """
    content = "".join(exact_line(group) + "\n" for group in groups).encode()
    with locked(path.parent):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                size, content = _close_last_line(path, descriptor, content)
            try:
                _write(descriptor, content)
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
    beside: bool = False,
    after: Taken | None = None,
) -> Lines:
    """The groups of a file, ours or of an older program.

    beside: only our own lines, and none of `after`: those that a Parquet file beside it does not have.

    Raises: TrajectoryLogError that names the line which is no group, OSError.
    """
    data = path.read_bytes()
    whole = _whole(data)
    start = after.size if beside and after is not None and _begins_with(data, after) else 0
    groups = []
    for number, line in enumerate(data[start:whole].split(b"\n"), 1 + data.count(b"\n", 0, start)):
        if line.strip() and (not beside or line.startswith(MARK)):
            groups.append(_group(line, number, trajectory_class))
    taken = Taken(size=whole, sha256=hashlib.sha256(data[:whole]).hexdigest())
    return Lines(groups=groups, taken=taken, torn=len(data) - whole)


def _group(line: bytes, number: int, trajectory_class: type[Trajectory]) -> TrajectoryGroup:
    try:
        data = from_text(line.decode())
        read = _exact_group if line.startswith(MARK) else dict_to_trajectory_group
        return read(data, trajectory_class)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        wanted = "" if trajectory_class is Trajectory else f" as {trajectory_class.__name__}"
        raise TrajectoryLogError(f"line {number} is no group of trajectories{wanted}: {error!r}") from error


def _exact_group(data: dict[str, Any], trajectory_class: type[Trajectory]) -> TrajectoryGroup:
    trajectories = [
        build({name: revive(name, value) for name, value in fields.items()}, trajectory_class)
        for fields in data["trajectories"]
    ]
    # As it was written: what was valid then is not judged again.
    return TrajectoryGroup.model_construct(
        trajectories=trajectories,
        exceptions=[PydanticException.model_construct(**error) for error in data.get("exceptions") or ()],
        metadata=data.get("metadata") or {},
        metrics=data.get("metrics") or {},
        logs=data.get("logs") or [],
    )


def _begins_with(data: bytes, taken: Taken) -> bool:
    return len(data) >= taken.size and hashlib.sha256(data[: taken.size]).hexdigest() == taken.sha256


def _whole(data: bytes) -> int:
    """The size of the complete lines. A last line of an older program may lack its newline."""
    end = data.rfind(b"\n") + 1
    return len(data) if _is_json(data[end:]) else end


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _close_last_line(path: Path, descriptor: int, content: bytes) -> tuple[int, bytes]:
    """After a line without a newline: how much of the file stays, and what is to be written then."""
    data = path.read_bytes()
    whole = _whole(data)
    if whole == len(data):
        return whole, b"\n" + content
    _log.warning("%d bytes of a line that a killed process left in %s are removed", len(data) - whole, path)
    os.ftruncate(descriptor, whole)
    return whole, content


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)
