"""What came of a run, for people and for programs: with what it does not show, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from art.autorl.comparison import Comparison, Side
from art.autorl.folder import StepRow
from art.autorl.inputs import Inputs

FEW_INPUTS = 10
LONGER = 1.5
MANY_UNSCORED = 0.1
EXAMPLES = 3
ALARM = "judge/alarm"
EXAMPLE_CHARS = 600


@dataclass(frozen=True, kw_only=True)
class AutoRLReport:
    """A finished run."""

    task: str
    base_model: str
    model: str
    """`project/name`, as the model is registered."""
    step: int
    """The newest step, which the comparison is of."""
    inputs: Inputs
    wanted: tuple[int, int]
    """How many inputs to train on and to test were asked for."""
    system_prompt: str
    rubric: str
    prepared: Mapping[str, str]
    """By file: the digest of the inputs, the system prompt and the rubric that were used."""
    steps: tuple[StepRow, ...]
    comparison: Comparison
    same_judge: bool
    """Whether the judge that compared is the one that trained."""
    costs: Mapping[str, Mapping[str, float | None]]
    """Of "generator", "judge" and "referee", in this process: calls, cached, prompt_tokens, ...; usd is None
    where no price is known.
    """
    seconds: float
    """Wall time of this call, not of what was done before it was resumed."""
    stopped: str | None
    """Why training ended before its last step; None: it did not."""
    folder: Path

    @property
    def verdict(self) -> str:
        """ "better", "worse", "no difference shown" or "not judged"."""
        judged = self.comparison.judged
        if judged is None:
            return "not judged"
        return "better" if judged.above_zero else "worse" if judged.below_zero else "no difference shown"

    @property
    def cautions(self) -> list[str]:
        """Why the numbers may be worth less than they look."""
        return [text for text in (*self._about_the_judge(), *self._about_the_training()) if text]

    def _about_the_judge(self) -> list[str]:
        both, found = self.comparison, []
        if self.same_judge and both.judged is not None:
            found.append(
                "The judge that compared is the one that trained: what it likes is what the model was "
                "taught. Read the answers below, or have another model compare (`referee=`)."
            )
        if both.judged is not None and both.judged.count < FEW_INPUTS:
            found.append(
                f"{both.judged.count} test inputs are few: raise `num_test` for an interval that says more."
            )
        if both.unjudged:
            found.append(f"{both.unjudged} of {len(both.inputs)} test inputs have no verdict.")
        old, new = both.before.answer_chars, both.after.answer_chars
        if old and new and new > LONGER * old:
            found.append(
                f"Answers grew from {old:.0f} to {new:.0f} characters: the judge may like length itself."
            )
        if (both.after.cut or 0) > MANY_UNSCORED:
            found.append(f"{both.after.cut:.0%} of the answers after training end at `max_tokens`.")
        return found

    def _about_the_training(self) -> list[str]:
        found = []
        if (have := (len(self.inputs.train), len(self.inputs.test))) != self.wanted:
            found.append(
                f"{have[0]} inputs to train on and {have[1]} to test, where {self.wanted[0]} and "
                f"{self.wanted[1]} were asked for: the generator wrote no more different ones."
            )
        alarms = [row.step for row in self.steps if row.judge.get(ALARM)]
        if alarms:
            found.append(f"The judge's checks raised an alarm in steps {', '.join(map(str, alarms))}.")
        rollouts = sum(row.rollouts for row in self.steps)
        unscored, trained = (
            sum(getattr(row, name) for row in self.steps) for name in ("unscored", "trained")
        )
        if unscored > MANY_UNSCORED * rollouts:
            found.append(
                f"{unscored} of {rollouts} attempts got no score from the judge, and taught nothing."
            )
        if rollouts and trained < rollouts / 2:
            found.append(
                f"Only {trained} of {rollouts} attempts had a gradient: in the other groups all were scored "
                "alike."
            )
        if self.stopped:
            found.append(f"Training stopped before its end: {self.stopped}.")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `report.json` has them."""
        return {
            **{
                name: getattr(self, name)
                for name in (
                    *(
                        "task",
                        "base_model",
                        "model",
                        "step",
                        "verdict",
                        "cautions",
                        "system_prompt",
                        "rubric",
                    ),
                    *("same_judge", "seconds", "stopped"),
                )
            },
            "inputs": self.inputs.to_dict(),
            "prepared": dict(self.prepared),
            "steps": [asdict(row) for row in self.steps],
            "comparison": asdict(self.comparison),
            "costs": {name: dict(totals) for name, totals in self.costs.items()},
            "folder": str(self.folder),
        }

    def to_markdown(self) -> str:
        """As `report.md` has it."""
        return "\n".join(
            [
                f"# {self.model}\n",
                f"Task: {self.task}\n",
                *self._compared(),
                *(["## Cautions\n", *(f"- {text}" for text in self.cautions), ""] if self.cautions else []),
                *self._answers(),
                *self._trained(),
                *self._prepared(),
                *self._costs(),
            ]
        )

    def _compared(self) -> list[str]:
        both = self.comparison
        words = {
            "better": "The judge prefers the answers after training",
            "worse": "The judge prefers the answers from before training",
            "no difference shown": f"No difference that {len(both.inputs)} test inputs could show",
            "not judged": "Nothing was judged, so nothing is known",
        }
        told = f": {both.judged.signed()}" if both.judged is not None else ""
        lines = [
            f"**{words[self.verdict]}{told}.** `{self.base_model}`, {self.step} steps; over test inputs: "
            f"{both.wins} better, {both.ties} even, {both.losses} worse.\n",
            "| | before | after |",
            "|---|---:|---:|",
            *(
                f"| {label} | {_shown(old, form)} | {_shown(new, form)} |"
                for label, name, form in ROWS
                for old, new in [(getattr(both.before, name), getattr(both.after, name))]
                if old is not None or new is not None
            ),
            "",
        ]
        if both.measured is not None:
            lines.append(f"True quality: {both.measured.signed()}.\n")
        return lines

    def _answers(self) -> list[str]:
        lines = ["## Answers to test inputs\n"]
        for row in self.comparison.inputs[:EXAMPLES]:
            scores = [_shown(row[f"judged_{name}"], ".2f") for name in ("before", "after")]
            lines.append(f"Input (mean scores {scores[0]} before, {scores[1]} after):\n")
            lines.append(_quoted(row["input"]))
            for name in ("before", "after"):
                lines.append(f"{name.capitalize()}:\n\n{_quoted(row[name] or '(no answer)')}")
        return lines

    def _trained(self) -> list[str]:
        lines = [
            "## Training\n",
            "| step | mean score | attempts | with a gradient | unscored | failed | characters |",
            "|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for row in self.steps:
            lines.append(
                f"| {row.step} | {_shown(row.reward, '.3f')} | {row.rollouts} | {row.trained} | "
                f"{row.unscored} | {row.failed} | {_shown(row.answer_chars, '.0f')} |"
            )
        lines.append("\nScores compare attempts at one input; between steps they are not one scale.\n")
        return lines

    def _prepared(self) -> list[str]:
        left_out = ", ".join(f"{name} {count}" for name, count in self.inputs.rejected.items()) or "none"
        digests = ", ".join(f"{name} {digest}" for name, digest in self.prepared.items())
        return [
            "## Prepared\n",
            f"{len(self.inputs.train)} inputs to train on, {len(self.inputs.test)} to test; left out: "
            f"{left_out}.\n",
            f"System prompt:\n\n{_quoted(self.system_prompt or '(none)')}",
            f"Rubric:\n\n{_quoted(self.rubric)}",
            f"Files: {digests}.\n",
        ]

    def _costs(self) -> list[str]:
        lines = [
            "## Costs of this call\n",
            "| | calls | kept answers | tokens | US dollars |",
            "|---|---:|---:|---:|---:|",
        ]
        for name, spent in self.costs.items():
            tokens = (spent["prompt_tokens"] or 0) + (spent["completion_tokens"] or 0)
            usd = "not known" if spent["usd"] is None else f"{spent['usd']:.4f}"
            lines.append(f"| {name} | {spent['calls']:.0f} | {spent['cached']:.0f} | {tokens:.0f} | {usd} |")
        return [*lines, f"\n{self.seconds:.0f} s.\n"]


ROWS = (
    ("mean score of the judge", "judged", ".3f"),
    ("true quality", "measured", ".3f"),
    ("answers", "answers", ".0f"),
    ("failed attempts", "failed", ".0f"),
    ("characters of an answer", "answer_chars", ".0f"),
    ("ended at max_tokens", "cut", ".0%"),
)
assert {name for _, name, _ in ROWS} == set(Side.__dataclass_fields__)


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _quoted(text: str) -> str:
    short = text if len(text) <= EXAMPLE_CHARS else f"{text[:EXAMPLE_CHARS]} ..."
    return "\n".join(f"> {line}" for line in short.splitlines()) + "\n"
