"""Names of metrics: which section a number belongs to, and what a row of the history looks like. Pure
functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from art.wire.jobs import BalanceSheet

SECTIONS = frozenset({"reward", "loss", "offpolicy", "pipeline", "throughput", "costs", "time", "data"})
SPLITS = frozenset({"train", "val", "test"})


def route(name: str, split: str) -> str:
    """`acc` of split val is `val/acc`; `loss/train` stays. Other splits than train, val and test prefix
    all.
    """
    section = name.split("/", 1)[0]
    if split in SPLITS and "/" in name and section in SECTIONS | SPLITS:
        return name
    return f"{split}/{name}"


def sheet_metrics(sheet: BalanceSheet) -> dict[str, float]:
    """The balance sheet as metrics.

    Example: started 8 rollouts of 80 tokens, 6 of 60 trained and 2 of 20 unscored gives
    `data/sheet/started_rollouts` 8, `data/sheet/trained_rollouts` 6, `data/sheet/unscored_tokens` 20 and so
    on.
    """
    rows = {"started": sheet.started, **sheet.fates}
    metrics = {f"data/sheet/{fate}_rollouts": float(row.rollouts) for fate, row in rows.items()}
    metrics |= {f"data/sheet/{fate}_tokens": float(row.tokens) for fate, row in rows.items()}
    return metrics | {f"data/sheet/forks_{reason}": float(count) for reason, count in sheet.forks.items()}


def history_row(
    metrics: Mapping[str, float], *, data: Mapping[str, float], split: str, step: int, wall_clock: float
) -> dict[str, Any]:
    """One line of `history.jsonl`. Numbers that are not finite are left out. `wall_clock` in seconds."""
    named = {route(name, split): float(value) for name, value in metrics.items()}
    row: dict[str, Any] = {name: value for name, value in {**data, **named}.items() if math.isfinite(value)}
    return row | {
        "training_step": step,
        "time/wall_clock_sec": wall_clock,
        "step": step,
        "recorded_at": datetime.now().astimezone().isoformat(),
    }
