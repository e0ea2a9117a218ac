"""What this card can do at all: the two rates that all limits are computed from, on random data.

matrix product   8192 x 8192 x 8192 in bfloat16, 1.1 TFLOP each
copy             8 GB within the GPU's memory, bytes read and bytes written
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import torch

from bench.gpu.results import COPY, MATMUL, Session, append_line
from bench.gpu.shapes import wait_for

PACKAGES = ("torch", "transformers", "peft", "triton", "numpy", "tokenizers")


def measure_seconds(work: Callable[[], object], device: str, repetitions: int) -> float:
    """Returns the median of so many repetitions, after three that warm up."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repetitions):
        wait_for(device)
        begin = time.perf_counter()
        work()
        wait_for(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def describe_machine(session: Session) -> None:
    """Writes the line of kind `machine`."""
    fields = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            fields[name] = version(name)
    if session.device.startswith("cuda"):
        card = torch.cuda.get_device_properties(0)
        fields |= {
            "gpu": card.name,
            "gib": f"{card.total_memory / 2**30:.1f}",
            "cuda": torch.version.cuda or "",
        }
    cores = len(os.sched_getaffinity(0))
    fields |= {"python": platform.python_version(), "processor": f"{cores} cores, {platform.machine()}"}
    append_line(session.path, "machine", {**fields, "dry": session.dry})
    print(fields, flush=True)


def main(arguments: list[str]) -> None:
    session, _ = Session.open("ceilings", arguments)
    describe_machine(session)
    size, numbers = (512, 2**22) if session.dry else (8192, 2**31)
    repetitions = 3 if session.dry else 20
    made = [torch.randn(size, size, device=session.device, dtype=torch.bfloat16) for _ in range(2)]
    out = torch.empty_like(made[0])
    seconds = measure_seconds(lambda: torch.mm(*made, out=out), session.device, repetitions)
    session.record(MATMUL, 2 * size**3 / seconds / 1e12, "TFLOP/s", note=f"{size}^3, random data")
    source = torch.randint(0, 2**15, (numbers,), device=session.device, dtype=torch.int16)
    target = torch.empty_like(source)
    seconds = measure_seconds(lambda: target.copy_(source), session.device, repetitions)
    session.record(COPY, 2 * 2 * numbers / seconds / 1e12, "TB/s", note="bytes read and bytes written")


if __name__ == "__main__":
    main(sys.argv[1:])
