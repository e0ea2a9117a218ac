"""Out of memory: once more with half the token budget, then an error that says what to do."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from art.errors import TrainingError

LOG = logging.getLogger(__name__)

T = TypeVar("T")
MARKS = ("can't allocate memory", "std::bad_alloc", "out of memory")
"""What torch's RuntimeError says when an allocator of the CPU or of a library on the GPU is at its end."""


def with_half_budget_retry(run: Callable[[int], T], budget: int, *, longest: int) -> T:
    """`run(budget)`, and where that runs out of memory, once more with half the budget.

    `run` begins from nothing each time: it clears gradients and sets the RNG itself. `longest` is the longest
    path of the batch: no budget makes a pass shorter than it. Raises TrainingError when the second attempt
    fails as well, or when half a budget would change nothing.
    """
    fault = _attempt(run, budget)
    if not isinstance(fault, _OutOfMemory):
        return fault
    half = budget // 2
    if half >= 1 and max(half, longest) < max(budget, longest):
        LOG.warning(
            "Out of memory with a token budget of %d (%s). Once more with %d.", budget, fault.reason, half
        )
        _release()
        second = _attempt(run, half)
        if not isinstance(second, _OutOfMemory):
            return second
        fault, budget = second, half
    _release()
    lower = "" if longest >= budget else ", or lower token_budget further"
    raise TrainingError(
        f"Out of memory with a token budget of {budget}; the longest path has {longest} tokens, and a path "
        "is never cut. Set checkpoint_activations to 'on', lower the engine's share of the memory, take a "
        f"shorter context or a smaller model{lower}. ({fault.reason})"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator failed, on a GPU or a CPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in MARKS)


class _OutOfMemory:
    def __init__(self, reason: str) -> None:
        self.reason = reason


def _attempt(run: Callable[[int], T], budget: int) -> T | _OutOfMemory:
    """The error itself is not kept: its traceback holds every tensor of the failed pass."""
    try:
        return run(budget)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        lines = str(error).strip().splitlines()
        return _OutOfMemory(lines[0] if lines else type(error).__name__)


def _release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
