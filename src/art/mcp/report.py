"""What came of a run of MCP-RL, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from art.mcp.checked_scenarios import ScenarioSet
from art.mcp.comparison import MEASURE, Comparison
from art.mcp.run_folder import StepRow

HARDLY = 0.25
"""Share of attempts with a gradient below which a report says what to do about it."""
LESS_IS_BETTER = ("ran_out_of_turns", "num_turns", "tool_errors")


@dataclass(frozen=True, kw_only=True)
class McpReport:
    """A finished run."""

    server: str
    base_model: str
    model: str
    """`project/name`, as the model is registered."""
    step: int
    """The newest step, which the comparison is of."""
    scenarios: ScenarioSet
    steps: tuple[StepRow, ...]
    comparison: Comparison
    costs: Mapping[str, Mapping[str, float | None]]
    """Of "generator" and "judge", in this process: calls, cached, prompt_tokens, completion_tokens, usd
    (None: no price is known)."""
    seconds: float
    """Wall time of this call, not of what was done before it was resumed."""
    stopped: str | None = None
    """Why training ended before its last step; None: it did not."""
    folder: Path

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `report.json` has them."""
        return {
            **{
                name: getattr(self, name)
                for name in ("server", "base_model", "model", "step", "seconds", "stopped")
            },
            "scenarios": {
                "train": len(self.scenarios.train),
                "test": len(self.scenarios.test),
                "rejected": self.scenarios.rejections,
                "unplanned": self.scenarios.unplanned,
                "tools": dict(self.scenarios.tools),
                "pass_rate": self.base_rate,
            },
            "steps": [asdict(row) for row in self.steps],
            "comparison": asdict(self.comparison),
            "costs": {name: dict(totals) for name, totals in self.costs.items()},
            "folder": str(self.folder),
        }

    @property
    def base_rate(self) -> float | None:
        """Mean pass rate of the base model on the training scenarios; None: not measured."""
        rates = [one.pass_rate for one in self.scenarios.train if one.pass_rate is not None]
        return sum(rates) / len(rates) if rates else None

    def to_markdown(self) -> str:
        """As `report.md` has it."""
        parts = [
            f"# {self.model}\n",
            self._opening(),
            *self._compared(),
            *self._trained(),
            *self._generated(),
        ]
        return "\n".join([*parts, *self._costs()]) + "\n"

    def _opening(self) -> str:
        stopped = f" Training stopped before its end: {self.stopped}." if self.stopped else ""
        return (
            f"`{self.base_model}` learned to use the tools of `{self.server}` in {self.step} steps, within "
            f"{self.seconds:.0f} s of this call.{stopped}\n"
        )

    def _compared(self) -> list[str]:
        both = self.comparison
        lines = [
            f"## Before and after\n\n{len(self.scenarios.test)} held-out scenarios; {both.before.attempts} "
            f"attempts before, {both.after.attempts} after, with the same seeds.\n",
            "| | before | after |",
            "|---|---|---|",
        ]
        if both.before.judged is not None and both.after.judged is not None:
            lines.append(f"| judge, both side by side | {both.before.judged:.3f} | {both.after.judged:.3f} |")
        for name in both.after.figures:
            less = " (less is better)" if name in LESS_IS_BETTER else ""
            old, new = both.before.figures.get(name), both.after.figures[name]
            lines.append(f"| {name}{less} | {shown(old)} | {shown(new)} |")
        lines.append(f"| attempts that failed | {both.before.failed} | {both.after.failed} |")
        lines.append(
            f"\nThe judge preferred the attempts after training in {both.wins} scenarios, those before in "
            f"{both.losses}, neither in {both.ties}; {both.unjudged} have no verdict.\n"
        )
        return lines

    def _trained(self) -> list[str]:
        if not self.steps:
            return ["## Training\n\nNo step was made.\n"]
        head = [
            "## Training\n",
            "| step | reward | rollouts | failed | unscored | trained |",
            "|---|---|---|---|---|---|",
        ]
        rows = [
            f"| {row.step} | {shown(row.reward)} | {row.rollouts} | {row.failed} | {row.unscored} | "
            f"{row.trained} |"
            for row in self.steps
        ]
        made, trained = sum(row.rollouts for row in self.steps), sum(row.trained for row in self.steps)
        if trained < HARDLY * made:
            rows.append(
                f"\nOnly {trained} of {made} attempts could teach anything: the others were as good as their "
                "whole group, or had no score. Make attempts differ (a higher temperature, larger groups, "
                "more turns), or begin with scenarios that the base model does sometimes."
            )
        return [*head, *rows, "\nRULER's scores compare the attempts of one group: their mean says little.\n"]

    def _generated(self) -> list[str]:
        made = self.scenarios
        reasons = ", ".join(f"{name} {count}" for name, count in made.rejections.items()) or "none"
        lines = [
            f"## Scenarios\n\n{len(made.train)} to train on, {len(made.test)} held out. Rejected: {reasons}.",
            f"Without a plan, so hardly checked: {made.unplanned}.",
        ]
        if self.base_rate is not None:
            known = MEASURE in self.comparison.before.figures
            does = "does" if known else "cleanly ends (whether with the right answer is not known)"
            lines.append(f"The base model {does} {self.base_rate:.0%} of its attempts at the former.")
        if made.tools:
            lines.append(
                "In plans: " + ", ".join(f"{name} {count}" for name, count in made.tools.items()) + "."
            )
        return [*lines, ""]

    def _costs(self) -> list[str]:
        lines = [
            "## Costs\n",
            "| | calls | from the cache | tokens in | tokens out | US dollars |",
            "|---|---|---|---|---|---|",
        ]
        for name, totals in self.costs.items():
            usd = totals.get("usd")
            lines.append(
                f"| {name} | {totals.get('calls', 0)} | {totals.get('cached', 0)} | "
                f"{totals.get('prompt_tokens', 0)} | {totals.get('completion_tokens', 0)} | "
                f"{'not known' if usd is None else f'{usd:.4f}'} |"
            )
        return lines


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
