"""Trajectories of plain texts, and judges that are formulas of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from art.rewards.judge_view import View
from art.rewards.reward import Score
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored


def attempts(*answers: str, step: int | None = None) -> TrajectoryGroup:
    """One group, an answer each."""
    question = {"role": "user", "content": "How much is it?"}
    return TrajectoryGroup(
        Trajectory(
            messages_and_choices=[question, {"role": "assistant", "content": answer}],
            initial_policy_version=step,
        )
        for answer in answers
    )


def answer_of(view: View) -> str:
    return str(view.conversations[0][-1]["content"])


@dataclass
class FormulaJudge:
    """A scorer by a function of the answer and of its place in the order shown."""

    formula: Callable[[str, int], float]
    name: str = "formula"
    asked: list[tuple[tuple[int, ...] | None, str]] = field(default_factory=list)

    async def score(
        self, views: Sequence[View], *, order: Sequence[int] | None = None, salt: str = ""
    ) -> list[Score]:
        self.asked.append((tuple(order) if order is not None else None, salt))
        shown = list(order) if order is not None else list(range(len(views)))
        return [Score(value=self.formula(answer_of(v), shown.index(i))) for i, v in enumerate(views)]


def scores_of(*values: float | Unscored) -> list[Score]:
    return [Score(value=value) for value in values]
