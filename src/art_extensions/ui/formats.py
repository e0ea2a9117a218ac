"""How pages write numbers, times and addresses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from art_extensions.ui.conversation import visible

FATE_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "trained": "trained",
        "zero_advantage": "equal rewards",
        "failed": "failed",
        "unscored": "without a reward",
        "no_samples": "nothing sampled",
        "stale": "too old",
        "truncated": "cut at the token limit",
        "overlong": "too long to train",
        "damaged": "damaged in the ledger",
        "mismatch": "engine and trainer disagree",
        "untrainable": "not trainable",
        "context": "context only",
        "discarded": "left out by the program",
        "replaced": "replaced by another group",
        "started": "started",
    }
)
FATE_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "trained": "good",
        "zero_advantage": "quiet",
        "context": "quiet",
        "discarded": "quiet",
        "replaced": "quiet",
        "failed": "bad",
        "damaged": "bad",
        "mismatch": "bad",
    }
)
"""The colour of a fate; others are warnings."""
MISSING = "\N{EN DASH}"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def number(value: object, digits: int = 3) -> str:
    """Returns a number for people: 0.586, 1,234, 12.3 k, 1.2e-05; a dash for none.

    >>> [number(one) for one in (0.58593, 1234, 1234567, 0.0000123, None)]
    ['0.586', '1,234', '1.23 M', '1.23e-05', '–']
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return MISSING if value is None else str(value)
    size = abs(value)
    if size >= 1e6:
        power, unit = (1e9, "G") if size >= 1e9 else (1e6, "M")
        return f"{value / power:.3g} {unit}"
    if value == int(value) and (isinstance(value, int) or size >= 10):
        return f"{int(value):,}"
    if size >= 1000:
        return f"{value:,.0f}"
    if 0 < size < 10.0**-digits:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{digits}f}" if size < 10 else f"{value:.{digits}g}"


def interval(ends: tuple[float, float] | None) -> str:
    """Returns an interval for people; nothing for none.

    >>> interval((0.5, 1.0)), interval(None)
    ('0.500 to 1.000', '')
    """
    return "" if ends is None else f"{number(ends[0])} to {number(ends[1])}"


def plain(value: object) -> str:
    """Returns a figure of a program: whole ones without decimals.

    >>> [plain(one) for one in (3.0, 0.25, True)]
    ['3', '0.250', 'yes']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(int(value) if isinstance(value, float) and value.is_integer() else value)


def signed(value: float | None) -> str:
    """Returns a number with its sign."""
    return MISSING if value is None else ("+" if value > 0 else "") + number(value)


def duration(seconds: float | None) -> str:
    """Returns a time for people.

    >>> [duration(one) for one in (0.0123, 4.2, 75, 7300, None)]
    ['12 ms', '4.2 s', '1 min 15 s', '2 h 1 min', '–']
    """
    if seconds is None:
        return MISSING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)} min {int(seconds % _MINUTE)} s"
    return f"{int(seconds // _HOUR)} h {int(seconds % _HOUR // _MINUTE)} min"


def moment(seconds: float | None) -> str:
    """Returns a time since the epoch as a date in UTC."""
    if not seconds:
        return MISSING
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(value: float) -> str:
    """Returns bytes for people."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def whole_number(text: str | None) -> int | None:
    """Returns the whole number of a query's text; None where it is none."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 12 else None


def address(run: Any, *parts: object) -> str:
    """Returns the path of a run's page, every part quoted."""
    return "/runs/" + "/".join(quote(str(one), safe="") for one in (run.place, run.project, run.name, *parts))


def attribute_json(value: object) -> str:
    """Returns JSON for an attribute; the template escapes it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)


def fate_words(fate: str | None) -> str:
    """Returns what became of a rollout, in words."""
    return "not recorded" if not fate else FATE_WORDS.get(fate, visible(fate).replace("_", " "))


def fate_kind(fate: str | None) -> str:
    """Returns the class of a fate's colour."""
    return "none" if not fate else FATE_KINDS.get(fate, "warn")


FILTERS: Mapping[str, Any] = MappingProxyType(
    {
        "number": number,
        "interval": interval,
        "plain": plain,
        "signed": signed,
        "duration": duration,
        "moment": moment,
        "size": size,
        "address": address,
        "json_text": attribute_json,
        "visible": visible,
        "fate_words": fate_words,
        "fate_kind": fate_kind,
    }
)
"""What templates call."""
