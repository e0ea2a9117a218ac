"""What was asked of the models beside the one that learns, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art.llm.channel import Channel

Costs = Mapping[str, Mapping[str, float | None]]
"""By role (generator, judge): calls, cached, prompt_tokens, ..., and usd, None where no price is known."""


def spent(channel: Channel) -> dict[str, float | None]:
    """What was asked through a channel in this process; US dollars are None where no price is known."""
    totals: dict[str, float | None] = asdict(channel.totals)
    known = getattr(channel.llm, "pricing", None) is not None or totals["usd"]
    return {**totals, "usd": totals["usd"] if known else None}


def costs_section(costs: Costs, seconds: float) -> list[str]:
    """Lines of Markdown. seconds: of the call."""
    lines = [
        "## Costs of this call\n",
        "| | calls | kept answers | tokens in | tokens out | US dollars |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for role, totals in costs.items():
        usd, counts = (
            totals.get("usd"),
            (totals.get(name) or 0 for name in ("calls", "cached", "prompt_tokens", "completion_tokens")),
        )
        told = "not known" if usd is None else f"{usd:.4f}"
        lines.append(f"| {role} | {' | '.join(f'{count:.0f}' for count in counts)} | {told} |")
    return [*lines, f"\n{seconds:.0f} s.\n"]
