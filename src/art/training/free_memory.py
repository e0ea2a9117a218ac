"""How much memory a device has left, and how much this process has used at most. All numbers are bytes."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import psutil
import torch

PROC = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Of a control group: the files of its limit and its use, and what of the use the kernel gives back."""


def free_memory(device: torch.device) -> int:
    """What could be allocated now: on a GPU with what torch holds unused, on a CPU within the container's
    limit.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    available = int(psutil.virtual_memory().available)
    limited = cgroup_left(PROC / "cgroup", CGROUPS)
    return available if limited is None else min(available, limited)


def cgroup_left(membership: Path, root: Path) -> int | None:
    """What the memory limits of this process's control group and of those above it leave; None: no limit."""
    if not membership.exists():
        return None
    left = []
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root, V2
        elif "memory" in controllers.split(","):
            base, names = root / "memory", V1
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        # In a container the mount is often the group itself, whatever its path says.
        for folder in [inside, *inside.parents]:
            one = _left(base / folder, *names)
            if one is not None:
                left.append(one)
    return min(left, default=None)


def _left(folder: Path, limit_file: str, use_file: str, given_back: str) -> int | None:
    try:
        limit, used = (folder / limit_file).read_text().strip(), int((folder / use_file).read_text())
        statistics = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return None
    if limit == "max":
        return None
    cache = sum(int(line.split()[1]) for line in statistics if line.split()[0] == given_back)
    return max(0, int(limit) - used + cache)


class Peak:
    """The most memory in use since this object was made: of the GPU by torch, of a CPU by the process.

    Where the system cannot forget an earlier maximum, it is the most since the process began.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif (PROC / "clear_refs").exists():
            (PROC / "clear_refs").write_text("5")

    def bytes(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return _status("VmHWM")


def used_memory(device: torch.device) -> int:
    """What `Peak` would say if nothing happened."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _status("VmRSS")


def _status(name: str) -> int:
    """A line of `/proc/self/status`; elsewhere the resident set as psutil knows it."""
    path = PROC / "status"
    if not path.exists():
        return int(psutil.Process().memory_info().rss)
    lines = dict(line.split(":", 1) for line in path.read_text().splitlines())
    return int(lines[name].split()[0]) * 1024
