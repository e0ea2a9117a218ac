"""Where an alarm rings: from the group in which a figure passes its limit until it is back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A figure that passed its limit."""

    check: str
    """agreement, holdout, divergence, length or calibration."""
    value: float
    limit: float
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, kw_only=True)
class CheckReading:
    """The current value of a check. value: None if too little is known for an alarm."""

    check: str
    value: float | None
    limit: float | None
    above: bool
    """Rings above the limit; otherwise at and below it."""
    meaning: str
    """What a ringing alarm says, with `{value}` and `{limit}`."""

    @property
    def is_alarming(self) -> bool:
        if self.value is None or self.limit is None:
            return False
        return self.value > self.limit if self.above else self.value <= self.limit


@dataclass
class Alarms:
    """The active alarms; each is reported once when it starts."""

    judge: str
    ringing: set[str] = field(default_factory=set)

    async def update(
        self, readings: list[CheckReading], on_alarm: Callable[[Alarm], Any] | None
    ) -> dict[str, float]:
        """`judge/alarm` (1 while any rings) and `judge/alarm_<check>`; warns and calls for those that began.

        Raises what `on_alarm` raises.
        """
        began = [one for one in readings if one.is_alarming and one.check not in self.ringing]
        self.ringing = {one.check for one in readings if one.is_alarming}
        figures = {f"judge/alarm_{one.check}": float(one.is_alarming) for one in readings}
        for one in began:
            alarm = _alarm(one, self.judge)
            _log.warning("%s", alarm)
            answer = on_alarm(alarm) if on_alarm is not None else None
            if isawaitable(answer):
                await answer
        return {"judge/alarm": float(bool(self.ringing)), **figures}


def _alarm(reading: CheckReading, judge: str) -> Alarm:
    value, limit = reading.value or 0.0, reading.limit or 0.0
    meaning = reading.meaning.format(value=f"{value:.2f}", limit=f"{limit:g}")
    return Alarm(check=reading.check, value=value, limit=limit, message=f"judge {judge!r}: {meaning}")
