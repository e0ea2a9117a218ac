"""What came of a run of AutoRL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from art.autorl.inputs import Inputs
from art.runs.report import RunReport, quoted

LONGER = 1.5
MANY_CUT = 0.1


@dataclass(frozen=True, kw_only=True)
class AutoRLReport(RunReport):
    """A finished run."""

    NOUN: ClassVar[str] = "input"
    LABELS: ClassVar[Mapping[str, str]] = {
        **RunReport.LABELS,
        "answer_chars": "characters of an answer",
        "cut": "share that ended at max_tokens",
    }

    task: str
    inputs: Inputs
    wanted: tuple[int, int]
    """How many inputs to train on and to test were asked for."""
    system_prompt: str
    rubric: str
    prepared: Mapping[str, str]
    """By file: the digest of the inputs, the system prompt and the rubric that were used."""

    @property
    def cautions(self) -> list[str]:
        """With those about the answers and the inputs."""
        return [*super().cautions, *self._about_the_answers(), *self._about_the_inputs()]

    def _about_the_answers(self) -> Iterable[str]:
        before, after = self.comparison.before.figures, self.comparison.after.figures
        old, new = before.get("answer_chars"), after.get("answer_chars")
        if old and new and new > LONGER * old:
            yield f"Answers grew from {old:.0f} to {new:.0f} characters: the judge may like length itself."
        if (cut := after.get("cut", 0.0)) > MANY_CUT:
            yield f"{cut:.0%} of the answers after training end at `max_tokens`."

    def _about_the_inputs(self) -> Iterable[str]:
        if (have := (len(self.inputs.train), len(self.inputs.test))) != self.wanted:
            yield (
                f"{have[0]} inputs to train on and {have[1]} to test, where {self.wanted[0]} and "
                f"{self.wanted[1]} were asked for: the generator wrote no more different ones."
            )

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "inputs": self.inputs.to_dict(), "prepared": dict(self.prepared)}

    def opening(self) -> list[str]:
        return [f"Task: {self.task}\n"]

    def material(self) -> list[str]:
        left_out = ", ".join(f"{name} {count}" for name, count in self.inputs.rejected.items()) or "none"
        digests = ", ".join(f"{name} {digest}" for name, digest in self.prepared.items())
        return [
            "## Prepared\n",
            f"{len(self.inputs.train)} inputs to train on, {len(self.inputs.test)} to test; left out: "
            f"{left_out}.\n",
            f"System prompt:\n\n{quoted(self.system_prompt or '(none)')}",
            f"Rubric:\n\n{quoted(self.rubric)}",
            f"Files: {digests}.\n",
        ]
