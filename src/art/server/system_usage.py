"""CPU, memory and GPUs while a step was made: of the machine, of the server, of its workers.

    system/cpu_percent              of all cores of the machine, mean since the step before
    system/memory_percent           of the machine's memory, now
    system/server_cpu_cores         cores that the server kept busy, mean; system/workers_cpu_cores too
    system/server_memory_bytes      resident memory, now; system/workers_memory_bytes of all workers together
    system/gpu_0_percent            mean of a GPU since the step before, where `pynvml` is installed
    system/gpu_0_memory_bytes       in use at most

These are metrics of the step, so `history.jsonl`, the pages and every tracker have them.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil

PREFIX = "system/"
GPU_SECONDS = 5.0
"""Seconds between two looks at the GPUs."""

_log = logging.getLogger(__name__)


class SystemUsage:
    """One model's: each call of `take` begins the next step's. Any thread may call it, one at a time."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._machine = psutil.cpu_times()
        self._busy: dict[int, float] = {}
        """CPU seconds of each process at the last call, by its pid."""
        self._gpus = GpuSampler()

    def take(self) -> dict[str, float]:
        """Returns the metrics since the last call. It reads a few files of `/proc`: milliseconds."""
        now, machine = time.monotonic(), psutil.cpu_times()
        seconds, self._since = max(now - self._since, 1e-9), now
        found = {
            "cpu_percent": _busy_percent(self._machine, machine),
            "memory_percent": float(psutil.virtual_memory().percent),
        }
        self._machine = machine
        busy: dict[int, float] = {}
        for name, processes in _server_and_workers().items():
            cores = resident = 0.0
            for one in processes:
                with suppress(psutil.Error):  # it has ended meanwhile
                    times, memory = one.cpu_times(), one.memory_info().rss
                    busy[one.pid] = times.user + times.system
                    cores += max(0.0, busy[one.pid] - self._busy.get(one.pid, 0.0)) / seconds
                    resident += memory
            found |= {f"{name}_cpu_cores": cores, f"{name}_memory_bytes": resident}
        self._busy = busy
        return {f"{PREFIX}{name}": value for name, value in (found | self._gpus.take()).items()}


def _server_and_workers() -> dict[str, list[psutil.Process]]:
    server, workers = psutil.Process(), list[psutil.Process]()
    with suppress(psutil.Error):
        workers = server.children(recursive=True)
    return {"server": [server], "workers": workers}


def _busy_percent(before: Any, after: Any) -> float:
    """The share of the time between two readings in which the machine's cores were not idle, in percent."""
    spent = {name: getattr(after, name) - getattr(before, name) for name in after._fields}
    total = sum(spent.values()) - spent.get("guest", 0.0) - spent.get("guest_nice", 0.0)  # in `user` as well
    idle = spent["idle"] + spent.get("iowait", 0.0)
    return 0.0 if total <= 0 else min(100.0, max(0.0, 100.0 * (total - idle) / total))


class GpuSampler:
    """Looks at the GPUs every few seconds, where NVIDIA's library and `pynvml` are there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._percents: dict[int, list[float]] = {}
        self._most: dict[int, float] = {}
        self._nvml = _open_nvml()
        if self._nvml is not None:
            threading.Thread(target=_sample, args=(weakref.ref(self),), name="art-gpus", daemon=True).start()

    def take(self) -> dict[str, float]:
        """Returns mean use and most memory of each GPU since the last call."""
        self.look()
        with self._lock:
            percents, self._percents = self._percents, {}
            most, self._most = self._most, {}
        found = {f"gpu_{gpu}_percent": sum(seen) / len(seen) for gpu, seen in percents.items()}
        return found | {f"gpu_{gpu}_memory_bytes": size for gpu, size in most.items()}

    def look(self) -> bool:
        """Notes what the GPUs do now. Returns whether there are any to look at."""
        if (nvml := self._nvml) is None:
            return False
        try:
            read = list(_read_gpus(nvml))
        except nvml.NVMLError as error:
            _log.warning("GPUs are no longer measured: %s", error)
            self._nvml = None
            return False
        with self._lock:
            for gpu, percent, size in read:
                self._percents.setdefault(gpu, []).append(percent)
                self._most[gpu] = max(self._most.get(gpu, 0.0), size)
        return True


def _sample(sampler: weakref.ref[GpuSampler]) -> None:
    """Looks again and again, until nobody has the sampler any more."""
    while (found := sampler()) is not None and found.look():
        del found
        time.sleep(GPU_SECONDS)


def _read_gpus(nvml: Any) -> Iterator[tuple[int, float, float]]:
    """Yields number, use in percent and bytes in use of each GPU."""
    for gpu in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(gpu)
        percent = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        yield gpu, float(percent), float(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def _open_nvml() -> Any:
    """The module of NVIDIA's library; None where one of the two is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
