"""What came of a run of MCP-RL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from art.mcp.scenarios.checked import ScenarioSet
from art.runs.measure import MEASURE
from art.runs.report import RunReport


@dataclass(frozen=True, kw_only=True)
class McpReport(RunReport):
    """A finished run."""

    NOUN: ClassVar[str] = "scenario"
    LABELS: ClassVar[Mapping[str, str]] = {
        **RunReport.LABELS,
        **{name: f"{name} (less is better)" for name in ("ran_out_of_turns", "num_turns", "tool_errors")},
    }

    server: str
    scenarios: ScenarioSet

    @property
    def base_rate(self) -> float | None:
        """Mean pass rate of the base model on the training scenarios; None: not measured."""
        rates = [one.pass_rate for one in self.scenarios.train if one.pass_rate is not None]
        return sum(rates) / len(rates) if rates else None

    def to_dict(self) -> dict[str, Any]:
        made = self.scenarios
        return {
            **super().to_dict(),
            "scenarios": {
                "train": len(made.train),
                "test": len(made.test),
                "rejected": made.rejections,
                "unplanned": made.unplanned,
                "tools": dict(made.tools),
                "pass_rate": self.base_rate,
            },
        }

    def opening(self) -> list[str]:
        return [f"Server: `{self.server}`\n"]

    def material(self) -> list[str]:
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
