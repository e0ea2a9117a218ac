"""How a run goes, in one line: a bar where somebody watches, and a line in the log now and then."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from art.errors import ConfigurationError
from art.tracking.progress import open_progress

_log = logging.getLogger("art.runs.pipeline")  # below `art`, so that `show_log` shows its lines

REDRAWN_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Status:
    """The numbers of a run at one moment. Groups, but where it is said."""

    step: int
    """Training steps that the run has made."""
    max_steps: int | None = None
    settled: int = 0
    """Scenarios that have met their end."""
    running: int = 0
    queued: int = 0
    discarded: int = 0
    stale: int = 0
    failed: int = 0
    failed_evals: int = 0
    """Evaluations that were given up."""
    reward: float | None = None
    """Mean of the last trained batch."""


class StatusReporter:
    """Keeps the status line. `step_seconds` is an exponentially weighted average of the seconds between
    steps.
    """

    def __init__(
        self,
        *,
        log_interval_seconds: float = 60.0,
        ewa_alpha: float = 0.2,
        total_scenarios: int | None = None,
        title: str | None = "pipeline",
    ) -> None:
        """ewa_alpha: the weight of the newest step in the average. title: of the bar; None: no bar."""
        if not (log_interval_seconds > 0 and 0 < ewa_alpha <= 1):
            raise ConfigurationError(
                f"StatusReporter({log_interval_seconds=}, {ewa_alpha=}): the first is above 0, the second "
                "above 0 and at most 1"
            )
        self._interval, self._alpha, self._title = log_interval_seconds, ewa_alpha, title
        self.total_scenarios = total_scenarios
        self.step_seconds: float | None = None
        self._last: tuple[int, float] | None = None

    def step_done(self, step: int, now: float) -> None:
        """A step has ended at `now` (seconds of any clock)."""
        if self._last is not None and step > self._last[0]:
            seconds = (now - self._last[1]) / (step - self._last[0])
            before = seconds if self.step_seconds is None else self.step_seconds
            self.step_seconds = self._alpha * seconds + (1 - self._alpha) * before
        self._last = (step, now)

    def line(self, status: Status) -> str:
        """The status as text.

        >>> reporter = StatusReporter(total_scenarios=400)
        >>> reporter.line(Status(step=3, max_steps=100, settled=21, running=16, queued=2, stale=1))
        'step 3/100, scenarios 21/400, running 16, queued 2, stale 1'
        """
        parts = [
            f"step {status.step}" + (f"/{status.max_steps}" if status.max_steps else ""),
            f"scenarios {status.settled}" + (f"/{self.total_scenarios}" if self.total_scenarios else ""),
            f"running {status.running}",
            f"queued {status.queued}",
        ]
        parts += [f"{name} {value}" for name, value in self._untrained_counts(status).items() if value]
        if self.step_seconds is not None:
            parts.append(f"{self.step_seconds:.1f} s a step")
        if status.reward is not None:
            parts.append(f"reward {status.reward:.3g}")
        return ", ".join(parts)

    async def run(self, read: Callable[[], Status]) -> None:
        """Draw and log until cancelled."""
        first = read()
        logged = time.monotonic()
        with open_progress(self._title, first.max_steps) as bar:
            while True:
                status = read()
                bar.move_to(status.step, status.max_steps or 0, "")
                shown = {"running": float(status.running), "queued": float(status.queued)}
                shown |= {
                    name: float(value) for name, value in self._untrained_counts(status).items() if value
                }
                bar.advance(0, shown | ({} if status.reward is None else {"reward": status.reward}))
                if time.monotonic() - logged >= self._interval:
                    logged = time.monotonic()
                    _log.info("%s", self.line(status))
                await asyncio.sleep(min(REDRAWN_S, self._interval))

    @staticmethod
    def _untrained_counts(status: Status) -> dict[str, int]:
        return {
            "discarded": status.discarded,
            "stale": status.stale,
            "failed": status.failed,
            "evals failed": status.failed_evals,
        }
