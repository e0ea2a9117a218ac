"""Memory that is left on a device, and whether a model's weights fit before they are loaded.

All numbers are bytes.
"""

from __future__ import annotations

from contextlib import suppress
from math import prod
from pathlib import Path

import psutil
import torch
from safetensors import SafetensorError, safe_open

from art.errors import ConfigurationError
from art.process.threads import CGROUPS, PROC, control_groups
from art.wire.records import Bits

GIB = 2**30
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""The files of a control group's limit and use, and the statistic of what the kernel gives back."""


def free_memory(device: torch.device) -> int:
    """Returns the memory that could be allocated now: on a GPU with torch's unused memory, on a CPU within
    the container's limit.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    available = int(psutil.virtual_memory().available)
    limited = cgroup_left(PROC / "cgroup", CGROUPS)
    return available if limited is None else min(available, limited)


def cgroup_left(membership: Path, root: Path) -> int | None:
    """Returns the memory left by the limits of this process's control group and of those above it; None: no
    limit.
    """
    groups = control_groups(membership, root, "memory")
    found = [_left(folder, *names) for folder in groups for names in (V2, V1)]
    return min((left for left in found if left is not None), default=None)


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


def check_weights_fit(source: str, device: torch.device | str, dtype: torch.dtype, bits: Bits = 16) -> None:
    """Raises ConfigurationError where the weights of a folder alone need more than what is left: a process
    that loaded them would be ended by the system without a word.
    """
    numbers = count_weights(Path(source))
    needed = numbers * dtype.itemsize if bits == 16 else numbers * bits // 8
    free = free_memory(torch.device(device))
    if needed > free:
        precision = str(dtype).removeprefix("torch.") if bits == 16 else f"{bits} bits"
        raise ConfigurationError(
            f"the base model {source!r} is too large for this machine: {numbers / 1e9:.2f} billion weights "
            f"in {precision} take {needed / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free on "
            f"{str(device)!r}. End other programs, or take a smaller model, #4bit or #8bit; `art doctor "
            "--plan MODEL` computes what a model needs"
        )


def count_weights(folder: Path) -> int:
    """Returns the numbers in the safetensors files of a folder, from their headers; 0 for no folder.

    A damaged file is left to who loads it.
    """
    total = 0
    for file in folder.glob("*.safetensors") if folder.is_dir() else ():
        with suppress(SafetensorError, OSError), safe_open(file, framework="pt") as weights:
            total += sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())
    return total
