"""What the judges and generators of a run cost: their budget and their cached answers lie with the run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from art.runs.training_run import OnProgress

if TYPE_CHECKING:
    from art.rewards.llm.budget import Budget
    from art.rewards.llm.cache import AnswerCache
    from art.rewards.llm.channel import Channel

BUDGET_FILE = "budget.sqlite3"


def answer_cache_in(root: Path) -> AnswerCache:
    """Returns the default file of the cached answers of judges and generators."""
    from art.rewards.llm.cache import DEFAULT_PATH, AnswerCache

    return AnswerCache(root / DEFAULT_PATH.name)


def keep_budget(budget: Budget | None, folder: Path, tell: OnProgress) -> None:
    """Stores the amounts spent in the run's folder: a resumed run has the remaining budget.

    A budget that has a file of its own stays there. Raises ConfigurationError.
    """
    if budget is None:
        return
    budget.keep(folder / BUDGET_FILE)
    spent = budget.spent
    if spent.calls:
        used = ", ".join(
            f"{getattr(spent, name):g} of {limit:g} {name}"
            for name, limit in budget.limits.items()
            if limit is not None
        )
        tell(f"of the budget are spent already: {used}")


def channel_costs(channel: Channel) -> dict[str, float | None]:
    """Returns the requests and costs of a channel in this process; US dollars are None if no price is
    known.
    """
    totals: dict[str, float | None] = asdict(channel.totals)
    known = getattr(channel.llm, "pricing", None) is not None or totals["usd"]
    return {**totals, "usd": totals["usd"] if known else None}
