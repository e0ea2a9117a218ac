"""What came of a run, for people and for programs: with what it does not show, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from art.runs.cautions import about_the_judge, about_the_training
from art.runs.comparison import Comparison, Verdict
from art.runs.costs import Costs, costs_section
from art.runs.step import StepRow

QUOTED_CHARS = 600
EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """A finished run. A kind of run adds what it was of."""

    NOUN: ClassVar[str] = "task"
    """What a task is called there."""
    LABELS: ClassVar[Mapping[str, str]] = {"measure": "true quality"}
    """Of figures, for people; others go by their names."""

    base_model: str
    model: str
    """`project/name`, as the model is registered."""
    step: int
    """The newest step, which the comparison is of."""
    steps: tuple[StepRow, ...]
    comparison: Comparison
    same_judge: bool
    """Whether the judge that compared is the one that trained."""
    costs: Costs
    """Of all that were asked, in this process."""
    seconds: float
    """Wall time of this call, not of what was done before it was resumed."""
    stopped: str | None = None
    """Why training ended before its last step; None: it did not."""
    folder: Path

    @property
    def verdict(self) -> Verdict:
        """Of the judge, about before and after."""
        return self.comparison.verdict

    @property
    def cautions(self) -> list[str]:
        """Why the numbers may be worth less than they look."""
        return [
            *about_the_judge(self.comparison, self.NOUN, same_judge=self.same_judge),
            *about_the_training(self.steps, self.stopped),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `report.json` has them."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **{name: value for name, value in plain.items() if isinstance(value, str | int | float | None)},
            **{"verdict": self.verdict, "cautions": self.cautions},
            "steps": [asdict(row) for row in self.steps],
            "comparison": asdict(self.comparison),
            "costs": {role: dict(totals) for role, totals in self.costs.items()},
            "folder": str(self.folder),
        }

    def to_markdown(self) -> str:
        """As `report.md` has it."""
        return "\n".join([f"# {self.model}\n", *self.sections()])

    def sections(self) -> list[str]:
        """Lines of Markdown, below the title."""
        return [
            *self.opening(),
            *self.compared(),
            *self.cautioned(),
            *self.answers(),
            *self.trained(),
            *self.material(),
            *costs_section(self.costs, self.seconds),
        ]

    def opening(self) -> list[str]:
        """What the run was of."""
        return []

    def material(self) -> list[str]:
        """What it was made with."""
        return []

    def compared(self) -> list[str]:
        """The verdict, and both sides beside each other."""
        both, noun = self.comparison, self.NOUN
        words = {
            "better": "The judge prefers the attempts after training",
            "worse": "The judge prefers the attempts from before training",
            "no difference shown": f"No difference that {len(both.tasks)} test {noun}s could show",
            "not judged": "Nothing was judged, so nothing is known",
        }
        told = f": {both.judged.signed()}" if both.judged is not None else ""
        lines = [
            f"**{words[self.verdict]}{told}.** `{self.base_model}`, {self.step} steps; of the test "
            f"{noun}s, {both.wins} better, {both.ties} even, {both.losses} worse, {both.unjudged} without a "
            "verdict.\n",
            "| | before | after |",
            "|---|---:|---:|",
            f"| attempts | {both.before.attempts} | {both.after.attempts} |",
            f"| attempts that failed | {both.before.failed} | {both.after.failed} |",
        ]
        if both.judged is not None:
            old, new = shown(both.before.judged), shown(both.after.judged)
            lines.append(f"| judge, both side by side | {old} | {new} |")
        lines += [
            f"| {self.LABELS.get(name, name)} | {shown(both.before.figures.get(name))} | "
            f"{shown(both.after.figures.get(name))} |"
            for name in dict.fromkeys([*both.before.figures, *both.after.figures])
        ]
        truth = [f"\nTrue quality: {both.measured.signed()}."] if both.measured is not None else []
        return [*lines, *truth, ""]

    def cautioned(self) -> list[str]:
        """Nothing where there is nothing to be said."""
        found = self.cautions
        return ["## Cautions\n", *(f"- {text}" for text in found), ""] if found else []

    def answers(self) -> list[str]:
        """A few of both sides, to read."""
        lines = [f"## What was said to test {self.NOUN}s\n"]
        for row in self.comparison.tasks[:EXAMPLES]:
            old, new = shown(row.judged_before, ".2f"), shown(row.judged_after, ".2f")
            lines.append(f"{self.NOUN.capitalize()} (mean scores {old} before, {new} after):\n")
            lines.append(quoted(row.task))
            for name, answer in (("Before", row.answer_before), ("After", row.answer_after)):
                lines.append(f"{name}:\n\n{quoted(answer or '(nothing)')}")
        return lines

    def trained(self) -> list[str]:
        """Every step."""
        if not self.steps:
            return ["## Training\n\nNo step was made.\n"]
        names = list(dict.fromkeys(name for row in self.steps for name in row.figures))
        judge = list(dict.fromkeys(name for row in self.steps for name in row.judge))
        heads = ["step", "reward", "attempts", "with a gradient", "unscored", "failed"]
        heads += [self.LABELS.get(name, name) for name in names] + judge
        rows = [
            [
                *(str(row.step), shown(row.reward)),
                *(shown(count, "d") for count in (row.rollouts, row.trained, row.unscored, row.failed)),
                *(shown(row.figures.get(name)) for name in names),
                *(shown(row.judge.get(name)) for name in judge),
            ]
            for row in self.steps
        ]
        lines = [f"| {' | '.join(row)} |" for row in [heads, ["---:"] * len(heads), *rows]]
        note = "A judge's scores compare attempts at one {}; between steps they are not one scale."
        return ["## Training\n", *lines, f"\n{note.format(self.NOUN)}\n"]


def shown(value: float | None, form: str = ".3f") -> str:
    """A number for a table; "-" where there is none."""
    return "-" if value is None else format(value, form)


def quoted(text: str) -> str:
    """A text in Markdown, cut where it is long."""
    short = text if len(text) <= QUOTED_CHARS else f"{text[:QUOTED_CHARS]} ..."
    return "\n".join(f"> {line}" for line in short.splitlines()) + "\n"
