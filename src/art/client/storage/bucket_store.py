"""What a copy of a model's folder to a bucket or back takes and gives. An extension makes the copy.

    push = load_extension(STORAGE, "push")      report = await push(folder, (project, name), ...)
    pull = load_extension(STORAGE, "pull")      report = await pull(folder, (project, name), wanted, ...)

Both take `bucket`, `prefix` and `shown`: the title of the progress, None for none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class PushReport:
    """The result of a push, without the steps and files that existed already."""

    steps: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    bytes: int = 0


@dataclass(kw_only=True)
class PullReport:
    """The result of a pull, without the steps and files that existed already."""

    steps: list[int] = field(default_factory=list)
    set_aside: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The selection of a pull. step, not_after, newest: the checkpoints (all, if none is given). side_files:
    whether the files beside the checkpoints are pulled too. delete: whether local files that the bucket lacks
    are deleted.
    """

    step: int | None = None
    not_after: int | None = None
    newest: bool = False
    side_files: bool = True
    delete: bool = False
    exclude: Collection[str] = ()
