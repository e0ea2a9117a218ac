"""The lineage of checkpoints: which steps a model made, which are kept, and from which step it was forked.

Each model of a family is a line, its steps are places on it. A fork begins below the step that it was forked
from, under the same number. All of it is read from files:

    registration.json, .origin               the step that the model was forked from
    checkpoints/0007                         a step that is kept; the newest is the one that is served
    checkpoints/.0007.rejected-1             a step that was made and set aside
    steps/0007                               a step that was made; without a checkpoint it was deleted
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from art_extensions.ui.formats import address
from art_extensions.ui.run_files import RunFiles

_ORIGIN = re.compile(r"(?P<project>[^/@]+)/(?P<name>[^/@]+)@(?P<step>\d+)")
_REJECTED = re.compile(r"\.(\d+)\.rejected-\d+")
_LEFT, _TOP, _APART, _LANE, _RADIUS = 24, 44, 40, 62, 7
MOST_PLACES = 60
"""Steps of a model that are drawn; of more, the newest."""


Origin = tuple[str, int]
"""Model (`project/name`) and step."""


@dataclass(frozen=True)
class ModelSteps:
    """The steps of one model."""

    run: RunFiles
    origin: Origin | None
    """The step of which it is a fork."""
    kept: tuple[int, ...]
    rejected: tuple[int, ...]
    """Steps set aside, and not made again."""
    deleted: tuple[int, ...]
    kinds: Mapping[int, str]
    """`rl` or `sft`, where it is recorded."""

    @property
    def name(self) -> str:
        """`project/name`."""
        return f"{self.run.project}/{self.run.name}"


@dataclass(frozen=True)
class LineagePlace:
    """One step, drawn."""

    x: int
    y: int
    step: int
    state: str
    """newest, kept, rejected or deleted."""
    kind: str | None
    href: str
    model: str


@dataclass(frozen=True)
class LineageLane:
    """One model, drawn, with its line in the table."""

    steps: ModelSteps
    depth: int
    y: int
    from_x: int
    to_x: int
    missing_origin: bool


@dataclass(frozen=True)
class Lineage:
    """A family of models."""

    lanes: list[LineageLane]
    places: list[LineagePlace]
    forks: list[str]
    """SVG paths from a step to the fork of it."""
    columns: list[tuple[int, int]]
    """The number of a step and its x."""
    width: int
    height: int
    radius: int = _RADIUS


def lineage_of(run: RunFiles, runs: Sequence[RunFiles]) -> Lineage | None:
    """Returns the family of a run among the runs of its data folder; None where no step is known."""
    known = {f"{one.project}/{one.name}": one for one in runs if one.data_dir == run.data_dir}
    origins = {name: _origin(one) for name, one in known.items()}
    family = _family(f"{run.project}/{run.name}", origins)
    models = [(read_steps(known[name], origins[name]), depth) for name, depth in family]
    forked = {name: {one[1] for one in origins.values() if one and one[0] == name} for name, _ in family}
    drawn = {one.name: _drawn_steps(one, forked[one.name]) for one, _ in models}
    columns = sorted({step for steps in drawn.values() for step in steps})
    if not columns:
        return None
    x_of = {step: _LEFT + place * _APART for place, step in enumerate(columns)}
    y_of = {name: _TOP + place * _LANE for place, (name, _) in enumerate(family)}
    lanes, places, forks = list[LineageLane](), list[LineagePlace](), list[str]()
    for one, depth in models:
        steps, y = drawn[one.name], y_of[one.name]
        begin, end = (x_of[steps[0]], x_of[steps[-1]]) if steps else (_LEFT, _LEFT)
        missing = one.origin is not None and one.origin[0] not in y_of
        lanes.append(LineageLane(one, depth, y, begin, end, missing))
        places += _places(one, steps, x_of, y)
        if one.origin is not None and not missing and steps:
            forks.append(_curve(x_of[one.origin[1]], y_of[one.origin[0]], begin, y))
    width, height = _LEFT + len(columns) * _APART, _TOP + len(family) * _LANE - _LANE // 2
    return Lineage(lanes, places, forks, list(x_of.items()), width, height)


def read_steps(run: RunFiles, origin: Origin | None) -> ModelSteps:
    """Returns what became of each step of a model, as its folders say."""
    kinds = {one.step: one.job.get("kind") for one in run.checkpoints()}
    rejected = set[int]()
    with suppress(OSError):
        found = (_REJECTED.fullmatch(path.name) for path in run.files.checkpoints.iterdir())
        rejected = {int(one[1]) for one in found if one is not None} - kinds.keys()
    return ModelSteps(
        run,
        origin,
        kept=tuple(sorted(kinds)),
        rejected=tuple(sorted(rejected)),
        deleted=tuple(sorted(run.step_folders - kinds.keys() - rejected)),
        kinds={step: str(kind) for step, kind in kinds.items() if kind},
    )


def _origin(run: RunFiles) -> Origin | None:
    said = run.registration().get("origin")
    found = _ORIGIN.fullmatch(said) if isinstance(said, str) else None
    return (f"{found['project']}/{found['name']}", int(found["step"])) if found else None


def _family(name: str, origins: Mapping[str, Origin | None]) -> list[tuple[str, int]]:
    """The models that descend from the eldest ancestor of one, each behind its parent, with their depths."""
    eldest, seen = name, set[str]()
    while (origin := origins[eldest]) is not None and origin[0] in origins and eldest not in seen:
        seen.add(eldest)  # files may name each other in a circle
        eldest = origin[0]
    placed: dict[str, int] = {}
    waiting = [(eldest, 0)]
    while waiting:
        current, depth = waiting.pop()
        if current not in placed:
            placed[current] = depth
            forks = [other for other, one in origins.items() if one is not None and one[0] == current]
            waiting += [(other, depth + 1) for other in sorted(forks, reverse=True)]
    return list(placed.items())


def _drawn_steps(one: ModelSteps, forked: set[int]) -> list[int]:
    """Returns its steps, the newest of many, and those that others were forked from."""
    every = sorted({*one.kept, *one.rejected, *one.deleted})
    return sorted({*every[-MOST_PLACES:], *forked})


def _places(one: ModelSteps, steps: Sequence[int], x_of: Mapping[int, int], y: int) -> list[LineagePlace]:
    newest, has_page = (
        max(one.kept, default=None),
        {*one.run.splits.get("train", ()), *one.run.history.steps},
    )
    places = []
    for step in steps:
        state = "newest" if step == newest else "kept" if step in one.kept else "deleted"
        state = "rejected" if step in one.rejected else state
        href = address(one.run, "train", step) if step in has_page else address(one.run)
        places.append(LineagePlace(x_of[step], y, step, state, one.kinds.get(step), href, one.name))
    return places


def _curve(x: int, y: int, to_x: int, to_y: int) -> str:
    middle = (y + to_y) // 2
    return f"M{x} {y} C{x} {middle} {to_x} {middle} {to_x} {to_y}"
