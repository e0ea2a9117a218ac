"""The report of a run, for people and for programs.

It has the run's figures, its costs, and why the figures may be worth less than they look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from art.rewards.reward import ALARM
from art.runs.comparison import Comparison, Estimate, Verdict
from art.runs.folder import StepRow

FEW_TASKS = 10
MANY_UNSCORED = 0.1
FEW_TRAINED = 0.5
"""Share of rollouts with a gradient below which a report says what to do about it."""


def judge_warnings(
    comparison: Comparison, noun: str, *, same_judge: bool, number: str = "num_test"
) -> Iterable[str]:
    """noun: what a task is called. same_judge: whether the judge that compared is the one that trained.
    number: the setting that says how many test tasks there are.
    """
    judged = comparison.judged
    if same_judge and judged is not None:
        yield (
            "The judge that compared is the one that trained: what it likes is what the model was taught. "
            "Read the rollouts, or have another model compare."
        )
    if judged is not None and judged.count < FEW_TASKS:
        yield f"{judged.count} test {noun}s are few: raise `{number}` for an interval that says more."
    if comparison.unjudged:
        yield f"{comparison.unjudged} of {len(comparison.tasks)} test {noun}s have no verdict."


def training_warnings(steps: Sequence[StepRow], stopped: str | None) -> Iterable[str]:
    alarms = [str(row.step) for row in steps if row.judge.get(ALARM)]
    if alarms:
        yield f"The judge's checks raised an alarm in steps {', '.join(alarms)}."
    rollouts, unscored = (sum(getattr(row, name) for row in steps) for name in ("rollouts", "unscored"))
    counts = [(row.trained, row.rollouts) for row in steps if row.trained is not None]
    trained, asked = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    failures: Counter[str] = Counter()
    for row in steps:
        failures.update(row.failures)
    if failures:
        ((reason, count),) = failures.most_common(1)
        yield (
            f"{failures.total()} rollouts failed, and count neither as good nor as bad; {count} of them with "
            f"{reason}"
        )
    if unscored > MANY_UNSCORED * rollouts:
        yield f"{unscored} of {rollouts} rollouts got no score, and taught nothing."
    if trained < FEW_TRAINED * asked:
        yield (
            f"Only {trained} of {asked} rollouts could teach anything: the others were as good as their "
            "whole group, or had no score. Make rollouts differ: a higher temperature, larger groups, tasks "
            "that the base model does sometimes."
        )
    recovered = [str(row.step) for row in steps if row.recovered]
    if recovered:
        yield (
            f"The run was killed just after it committed steps {', '.join(recovered)}; what their rows lack, "
            "nobody has measured."
        )
    if stopped:
        yield f"Training stopped before its end: {stopped}."


Costs = Mapping[str, Mapping[str, float | None]]
"""The costs by role (generator, judge): calls, cached, prompt_tokens, ..., and usd, None without a price."""


def costs_section(costs: Costs, seconds: float) -> list[str]:
    """Lines of Markdown. seconds: of the call."""
    if not costs:
        return [f"{seconds:.0f} s.\n"]
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
        price = "not known" if usd is None else f"{usd:.4f}"
        lines.append(f"| {role} | {' | '.join(f'{count:.0f}' for count in counts)} | {price} |")
    return [*lines, f"\n{seconds:.0f} s.\n"]


QUOTED_CHARS = 600
EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """A finished run. A kind of run adds what it was of."""

    NOUN: ClassVar[str] = "task"
    """What a task is called there."""
    LABELS: ClassVar[Mapping[str, str]] = {"measure": "true quality"}
    """The labels of figures in the report by name; other figures are shown by their names."""
    VERDICTS: ClassVar[Mapping[Verdict, str]] = {
        "better": "The judge prefers the rollouts after training",
        "worse": "The judge prefers the rollouts from before training",
        "no difference shown": "No difference could be shown (test {noun}s: {count})",
        "not judged": "Nothing was judged, so nothing is known",
    }
    SCORE: ClassVar[str] = "judge, both side by side"
    """What the compared scores are called."""
    SCALE: ClassVar[str] = (
        "\nA judge's scores compare rollouts of one {noun}; between steps they are not one scale."
    )
    """A note on the rewards of the steps."""
    NUMBER: ClassVar[str] = "num_test"
    """The setting that says how many test tasks there are."""

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
    """The costs in this process, by role."""
    seconds: float
    """Wall time of this call, not of what was done before it was resumed."""
    stopped: str | None = None
    """Why training ended before its last step; None: it did not."""
    folder: Path

    @property
    def verdict(self) -> Verdict:
        """The judge's verdict on before and after."""
        return self.comparison.verdict

    @property
    def cautions(self) -> list[str]:
        """Returns why the numbers may be worth less than they look."""
        return [
            *judge_warnings(self.comparison, self.NOUN, same_judge=self.same_judge, number=self.NUMBER),
            *training_warnings(self.steps, self.stopped),
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
        """Returns the text of `report.md`."""
        return "\n".join([f"# {self.model}\n", *self.sections()])

    def sections(self) -> list[str]:
        """Lines of Markdown, below the title."""
        return [
            *self.opening(),
            *self.compared(),
            *self.caution_lines(),
            *self.answers(),
            *self.trained(),
            *self.material(),
            *costs_section(self.costs, self.seconds),
        ]

    def opening(self) -> list[str]:
        """Returns the description of the run."""
        return []

    def material(self) -> list[str]:
        """Returns the models and inputs of the run."""
        return []

    def compared(self) -> list[str]:
        """The verdict, and both sides beside each other."""
        both, noun = self.comparison, self.NOUN
        words = self.VERDICTS[self.verdict].format(count=len(both.tasks), noun=noun)
        difference = f": {both.judged.signed()}" if both.judged is not None else ""
        lines = [
            f"**{words}{difference}.** `{self.base_model}`, {self.step} steps; of the test "
            f"{noun}s, {both.wins} better, {both.ties} even, {both.losses} worse, {both.unjudged} without a "
            "verdict.\n",
            "| | before | after |",
            "|---|---:|---:|",
            f"| rollouts | {both.before.attempts} | {both.after.attempts} |",
            f"| rollouts that failed | {both.before.failed} | {both.after.failed} |",
        ]
        if both.judged is not None:
            old, new = shown(both.before.judged), shown(both.after.judged)
            lines.append(f"| {self.SCORE} | {old} | {new} |")
            old, new = (interval(side.estimate) for side in (both.before, both.after))
            lines.append(f"| its 95 % interval | {old} | {new} |")
        lines += [
            f"| {self.LABELS.get(name, name)} | {shown(both.before.figures.get(name))} | "
            f"{shown(both.after.figures.get(name))} |"
            for name in dict.fromkeys([*both.before.figures, *both.after.figures])
        ]
        truth = [f"\nTrue quality: {both.measured.signed()}."] if both.measured is not None else []
        return [*lines, *truth, ""]

    def caution_lines(self) -> list[str]:
        """Returns the cautions as text; empty without cautions."""
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
        heads = ["step", "reward", "rollouts", "with a gradient", "unscored", "failed"]
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
        return ["## Training\n", *lines, f"{self.SCALE.format(noun=self.NOUN)}\n"]


def shown(value: float | None, form: str = ".3f") -> str:
    """A number for a table; "-" where there is none."""
    return "-" if value is None else format(value, form)


def interval(estimate: Estimate | None) -> str:
    """The interval of an estimate for a table; "-" where there is no estimate."""
    if estimate is None:
        return "-"
    if estimate.low is None:
        return "none: a single value"
    return f"{estimate.low:.3f} to {estimate.high:.3f}"


def quoted(text: str) -> str:
    """A text in Markdown, cut where it is long."""
    short = text if len(text) <= QUOTED_CHARS else f"{text[:QUOTED_CHARS]} ..."
    return "\n".join(f"> {line}" for line in short.splitlines()) + "\n"
