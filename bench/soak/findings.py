"""What the looks of a soak say, figure by figure, each held against its goal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.soak.flatness import Look, has_outgrown, slope_of, warm_looks
from bench.soak.points import Point, disk_looks, stretches_of

MB = 1e6
SECOND = 1.0
EVEN = 1.25
"""The last tenth may have this much more of a rate than the first: other work runs on the machine."""
TENTH = 10
KEPT_LOOKS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Soak:
    """What the looks of one kind are held against. unit: steps or requests that a slope is given for."""

    kind: str
    unit: int
    memory_mb: float = 1.0
    """The growth of a process that is still flat, for a unit."""
    checkpoints: int
    tokens: int
    samples: float
    """Of a step or request."""
    kept: float
    """Steps or requests whose samples are in the ledger at most; 0: those of `KEPT_LOOKS` looks."""
    removed_bytes: float = 200.0
    """What a sample that was removed leaves in the ledger."""

    @property
    def per(self) -> str:
        return f"{self.unit:,} {self.kind}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One row of the table. met None: nothing is shown, or there is no goal."""

    name: str
    first: str
    last: str
    growth: str = ""
    goal: str = ""
    met: bool | None = None

    def line(self) -> str:
        """The row in Markdown."""
        met = {None: "" if not self.goal else "not shown", True: "met", False: "**not met**"}[self.met]
        return f"| {self.name} | {self.first} | {self.last} | {self.growth} | {self.goal} | {met} |"


def findings_of(points: Sequence[Point], soak: Soak) -> list[Finding]:
    """Returns all figures of a run; none where there are fewer than two looks."""
    if len(points) < 2:
        return []
    names = list(dict.fromkeys(name for one in points for name in one.processes))
    found = [memory_of(points, name, soak) for name in names]
    for name in names:
        found += [count_of(points, name, figure) for figure in ("descriptors", "threads")]
    found.append(same_processes(points))
    found += disk_of(points, soak)
    for name in names:
        found += [
            rate_of(points, name, *figure) for figure in (("cpu", "ms of CPU", 1e3), ("read", "kB", 1e-3))
        ]
    return [*found, latency_of(points), *views_of(points)]


def memory_of(points: Sequence[Point], name: str, soak: Soak) -> Finding:
    """The slope of a process's memory: met if all of its interval is below the goal."""
    stretches = stretches_of(points, name, "memory")
    slope = slope_of(stretches)
    warm = warm_looks(stretches[-1])
    first, last = (f"{warm[at][1] / MB:.1f} MB" for at in (0, -1))
    goal = f"below {soak.memory_mb:g} MB for {soak.per}"
    if slope is None:
        return Finding(name=f"{name}: memory", first=first, last=last, goal=goal)
    mb = slope.times(soak.unit / MB)
    met = True if mb.is_below(soak.memory_mb) else False if mb.is_above(soak.memory_mb) else None
    told = f"{mb.value:+.2f} MB ({mb.low:+.2f} to {mb.high:+.2f})"
    return Finding(name=f"{name}: memory", first=first, last=last, growth=told, goal=goal, met=met)


def count_of(points: Sequence[Point], name: str, figure: str) -> Finding:
    stretches = stretches_of(points, name, figure)
    newest = warm_looks(stretches[-1])
    return Finding(
        name=f"{name}: {figure}",
        first=f"{newest[0][1]:.0f}",
        last=f"{newest[-1][1]:.0f}",
        goal="constant",
        met=not has_outgrown(stretches),
    )


def same_processes(points: Sequence[Point]) -> Finding:
    """Each start has the same processes from its first look to its last."""
    sets = [sorted(one.processes) for one in points]
    same = all(
        len({tuple(sorted(one.processes)) for one in looks}) == 1
        for _, looks in itertools.groupby(points, key=lambda one: one.start)
    )
    ends = (str(len(sets[0])), str(len(sets[-1])))
    return Finding(name="processes", first=ends[0], last=ends[1], goal="the same", met=same)


def disk_of(points: Sequence[Point], soak: Soak) -> list[Finding]:
    """What is bounded, and what grows evenly with the steps."""
    found = []
    spacing = median(after.at - before.at for before, after in itertools.pairwise(points))
    for name, title, most in (
        ("checkpoints", "checkpoints", soak.checkpoints),
        ("tokens", "steps with a record of tokens", soak.tokens),
        ("samples", "samples in the ledger", round(soak.samples * (soak.kept or KEPT_LOOKS * spacing))),
    ):
        seen = [count for _, count in disk_looks(points, name)]
        found.append(
            Finding(
                name=f"disk: {title}",
                first=str(seen[0]),
                last=str(seen[-1]),
                goal=f"at most {most:,}",
                met=max(seen) <= most,
            )
        )
    looks = disk_looks(points, "ledger")
    left = bytes_for_one(looks[len(looks) // 2 :]) / soak.samples
    found.append(
        Finding(
            name="disk: ledger",
            first=f"{looks[len(looks) // 4][1] / MB:.1f} MB",
            last=f"{looks[-1][1] / MB:.1f} MB",
            growth=f"{left:.0f} bytes for a removed sample",
            goal=f"at most {soak.removed_bytes:g} bytes",
            met=left <= soak.removed_bytes,
        )
    )
    return found + [
        even_growth(points, name, soak) for name in ("jobs", "history", "rollouts", "trajectories")
    ]


def bytes_for_one(looks: Sequence[Look]) -> float:
    """Returns the growth for one step or request between the first look and the last."""
    (begin, before), (end, after) = looks[0], looks[-1]
    return (after - before) / (end - begin) if end > begin else 0.0


def even_growth(points: Sequence[Point], name: str, soak: Soak) -> Finding:
    """The record of a run grows with its steps; it must not grow faster later."""
    looks = disk_looks(points, name)
    half = len(looks) // 2
    early, late = bytes_for_one(looks[: half + 1]), bytes_for_one(looks[half:])
    one = soak.kind.removesuffix("s")
    return Finding(
        name=f"disk: {name}",
        first=f"{early / 1e3:.2f} kB a {one}",
        last=f"{late / 1e3:.2f} kB a {one}",
        goal=f"at most {EVEN} times",
        met=late <= early * EVEN,
    )


def rate_of(points: Sequence[Point], process: str, figure: str, unit: str, factor: float) -> Finding:
    """What a process spends for a step or request, in the first and in the last tenth of the looks.

    Bytes have no goal: now and then the program reads the whole history.
    """
    rates = [
        factor * (after - before) / (end - begin)
        for stretch in stretches_of(points, process, figure)
        for (begin, before), (end, after) in itertools.pairwise(stretch)
        if end > begin
    ]
    first, last = tenths(rates)
    ends = {"first": f"{first:.3g} {unit}", "last": f"{last:.3g} {unit}"}
    if figure == "read":
        return Finding(name=f"{process}: bytes read", **ends)
    return Finding(name=f"{process}: CPU", **ends, goal=f"at most {EVEN} times", met=last <= first * EVEN + 1)


def tenths(values: Sequence[float]) -> tuple[float, float]:
    """Returns the medians of the first and of the last tenth; 0 where there are none."""
    count = max(1, len(values) // TENTH)
    return (median(values[:count]), median(values[-count:])) if values else (0.0, 0.0)


def latency_of(points: Sequence[Point]) -> Finding:
    """Seconds of the clock say something only where the machine is quiet: no goal is held against them."""
    first, last = tenths([one.seconds for one in points])
    return Finding(name="time of one, median", first=f"{1e3 * first:.1f} ms", last=f"{1e3 * last:.1f} ms")


def views_of(points: Sequence[Point]) -> list[Finding]:
    """CPU of the pages and of `art explain`, when they were looked at first and last."""
    seen = [one.views for one in points if one.views]
    return [
        Finding(
            name=f"`{name}`" if name.startswith("art ") else f"`art ui`: {name}",
            first=f"{seen[0][name]:.2f} s of CPU",
            last=f"{seen[-1][name]:.2f} s of CPU",
            goal="below 1 s",
            met=seen[-1][name] < SECOND,
        )
        for name in (seen[-1] if seen else ())
    ]
