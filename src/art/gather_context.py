"""The context of a gather: it counts what rollouts did, shows it, and forgives so many failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from art.process.failures import ForgivenFailures


@dataclass
class GatherContext:
    """Counts what rollouts did. Programs with a gather of their own make one and pass it to
    `set_gather_context`; `pbar` may then be a bar of tqdm.
    """

    pbar: Any = None
    """An `art.tracking.progress.Progress`, or anything with tqdm's `update` and `set_postfix`."""
    metric_sums: Counter[str] = field(default_factory=Counter)
    metric_divisors: Counter[str] = field(default_factory=Counter)
    max_metrics: int | None = None
    max_exceptions: int | float = 0
    """A number of rollouts, or with 0 < x < 1 that share of `total`."""
    increment_pbar: bool = True
    total: int = 0
    """Rollouts in all; 0: the bar's total."""
    counted: bool = False
    """A group of coroutines has counted its rollouts here."""
    pbar_total_completion_tokens: bool = False
    """An option of older programs; without effect, as in `gather_trajectories`."""
    failures: ForgivenFailures = field(default_factory=ForgivenFailures, repr=False, compare=False)

    def update_pbar(self, n: int) -> None:
        """Advances the bar by `n` rollouts and shows the means so far."""
        if self.pbar is None:
            return
        names = [name for name in self.metric_divisors if name != "completion_tokens"][: self.max_metrics]
        if "completion_tokens" in self.metric_divisors:
            names.append("completion_tokens")
        means = {name: self.metric_sums[name] / self.metric_divisors[name] for name in names}
        if failed := self.metric_sums["exceptions"]:
            means["exceptions"] = failed
        moved = n if self.increment_pbar else 0
        if hasattr(self.pbar, "advance"):
            self.pbar.advance(moved, means)
        else:
            self.pbar.update(moved)
            self.pbar.set_postfix(means)

    def too_many_exceptions(self) -> bool:
        """Returns whether more rollouts failed than `max_exceptions` allows."""
        if 0 < self.max_exceptions < 1:
            total = self.total or getattr(self.pbar, "total", None) or 0
            return self.metric_sums["exceptions"] > self.max_exceptions * total
        return self.metric_sums["exceptions"] > self.max_exceptions

    def fail(self, error: BaseException) -> None:
        """Counts a failed rollout; raises its error if it is one too many."""
        self.metric_sums["exceptions"] += 1
        self.update_pbar(1)
        if self.too_many_exceptions():
            raise error
        self.failures.add(error)

    def reset(self) -> None:
        """Resets the counters. The limits stay."""
        self.metric_sums.clear()
        self.metric_divisors.clear()


gather_context_var: ContextVar[GatherContext | None] = ContextVar("art_gather", default=None)


def get_gather_context() -> GatherContext:
    """Returns the context of the gather this code runs in; outside of one a fresh context."""
    return gather_context_var.get() or GatherContext()


@contextmanager
def set_gather_context(context: GatherContext) -> Iterator[GatherContext]:
    """Counts the rollouts inside the block in `context`."""
    token = gather_context_var.set(context)
    try:
        yield context
    finally:
        gather_context_var.reset(token)
