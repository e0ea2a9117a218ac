"""Memory of a device: how much this process has used at most, and what happens when it runs out: a step is
tried once more with half the token budget, then an error says what to do.

All numbers are bytes.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import psutil
import torch

from art.errors import TrainingError
from art.process.threads import PROC


class MemoryPeak:
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
    """Returns the value of `MemoryPeak` if nothing happened."""
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


LOG = logging.getLogger(__name__)

MARKS = ("can't allocate memory", "std::bad_alloc", "out of memory")
"""What torch's RuntimeError says when an allocator of the CPU or of a library on the GPU is at its end."""


class HalfBudgetRetry:
    """Work that is done once more with half the token budget where memory ends. The budget stays halved.

        for attempt in retry.attempts():
            with attempt as budget:
                work(budget)

    The work begins from nothing each time, and gives no tensor a name beside the block: what has one is not
    let go before the second try. `longest` is the longest path of the batch: no budget makes a pass shorter.
    """

    def __init__(self, budget: int, *, longest: int) -> None:
        self._budget, self._longest = budget, longest
        self._fault: str | None = None

    def attempts(self) -> Iterator[HalfBudgetRetry]:
        """One, or two. Raises TrainingError when the second fails, too, or half a budget changes nothing."""
        yield self
        budget, half, longest = self._budget, self._budget // 2, self._longest
        if self._fault is not None and half >= 1 and max(half, longest) < max(budget, longest):
            LOG.warning(
                "Out of memory with a token budget of %d (%s). Once more with %d.", budget, self._fault, half
            )
            _release()
            self._budget = half
            yield self
        if self._fault is None:
            return
        _release()
        lower = "" if longest >= self._budget else ", or lower token_budget further"
        raise TrainingError(
            f"Out of memory with a token budget of {self._budget}; the longest path has {longest} tokens, "
            "and a path is never cut. Set checkpoint_activations to 'on', lower the engine's share of the "
            f"memory, take a shorter context or a smaller model{lower}. ({self._fault})"
        )

    def __enter__(self) -> int:
        self._fault = None
        return self._budget

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        # The error itself is not kept: its traceback holds every tensor of the failed pass.
        if error is None or not is_out_of_memory(error):
            return False
        lines = str(error).strip().splitlines()
        self._fault = lines[0] if lines else type(error).__name__
        return True


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an allocator failed, on a GPU or a CPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in MARKS)


def _release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
