"""The cores that this process may use, and what each worker is told of them: so many threads, which soon
sleep where they wait.

Engine and trainer take turns for the most part, so each gets all cores; what runs several times on a machine
(replicas, ranks) divides them. A thread that waits at the end of a parallel region spins by default, which
takes a core from whoever has work: beside another busy process a step of one second takes a minute. To sleep
at once costs a quarter of the speed of one sequence, whose products are short: waking takes as long as they
do. So threads spin for about a millisecond, then sleep.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

PROC = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")

OMP_NUM_THREADS = "OMP_NUM_THREADS"
THREAD_BUDGET = "ART_THREAD_BUDGET"
"""Set beside `OMP_NUM_THREADS` where that is our number and not the user's."""
WAITS = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000"}
"""How the threads of OpenMP wait: the first for all of its libraries, the second, turns of a loop before
sleep, for GNU's, torch's own."""

SMALL_MODEL_PARAMETERS = 20_000_000
"""Parameters. Below, the matrices are too small to be worth a second thread."""


def usable_cores() -> int:
    """Returns how many cores this process may use: those it is bound to, within its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        bound = len(os.sched_getaffinity(0))
    else:
        bound = os.cpu_count() or 1
    quota = cpu_quota(PROC / "cgroup", CGROUPS)
    return bound if quota is None else max(1, min(bound, math.ceil(quota)))


def cpu_quota(membership: Path, root: Path) -> float | None:
    """Returns the cores' worth of time that this process's control group and those above it grant; None: no
    limit.
    """
    found = []
    for folder in control_groups(membership, root, "cpu"):
        quota = _quota(folder)
        if quota is not None:
            found.append(quota)
    return min(found, default=None)


def control_groups(membership: Path, root: Path, controller: str) -> Iterator[Path]:
    """The folders of a controller for this process: its group and those above, of either version.

    membership: `/proc/self/cgroup`.
    """
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root
        elif controller in controllers.split(","):
            base = root / controller
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        # In a container the mount is often the group itself, whatever its path says.
        for folder in [inside, *inside.parents]:
            yield base / folder


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            granted, period = (folder / "cpu.max").read_text().split()
        else:
            granted = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if granted in ("max", "-1") else int(granted) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such group here, or a file of another form
        return None


def thread_variables(inherited: Mapping[str, str], *, copies: int = 1) -> dict[str, str]:
    """Returns what to add to the inherited environment of a worker that computes. What the user chose stays.

    copies: processes like it on this machine that compute at the same time.

    >>> thread_variables({"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "ACTIVE"})
    {}
    """
    # Either of them says how to wait: GNU's count would take an `ACTIVE` back.
    added = {} if WAITS.keys() & inherited.keys() else dict(WAITS)
    if OMP_NUM_THREADS not in inherited:
        number = str(max(1, usable_cores() // copies))
        added |= {OMP_NUM_THREADS: number, THREAD_BUDGET: number}
    return added


def cpu_threads(chosen: int | None, parameters: int, environment: Mapping[str, str]) -> int | None:
    """The number to set, or None to keep that of the environment.

    A small model's step is thousands of tiny parallel regions, where a second thread is more trouble than
    help: with one the step was the faster even on a quiet machine.
    """
    if chosen is not None:
        return chosen
    user_chose = OMP_NUM_THREADS in environment and THREAD_BUDGET not in environment
    return 1 if parameters < SMALL_MODEL_PARAMETERS and not user_chose else None
