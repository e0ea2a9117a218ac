"""Why the numbers of a run may be worth less than they look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from art.runs.comparison import Comparison
from art.runs.step import ALARM, StepRow

FEW_TASKS = 10
MANY_UNSCORED = 0.1
HARDLY = 0.5
"""Share of attempts with a gradient below which a report says what to do about it."""


def about_the_judge(comparison: Comparison, noun: str, *, same_judge: bool) -> Iterable[str]:
    """noun: what a task is called. same_judge: whether the judge that compared is the one that trained."""
    judged = comparison.judged
    if same_judge and judged is not None:
        yield (
            "The judge that compared is the one that trained: what it likes is what the model was taught. "
            "Read the attempts, or have another model compare."
        )
    if judged is not None and judged.count < FEW_TASKS:
        yield f"{judged.count} test {noun}s are few: raise `num_test` for an interval that says more."
    if comparison.unjudged:
        yield f"{comparison.unjudged} of {len(comparison.tasks)} test {noun}s have no verdict."


def about_the_training(steps: Sequence[StepRow], stopped: str | None) -> Iterable[str]:
    alarms = [str(row.step) for row in steps if row.judge.get(ALARM)]
    if alarms:
        yield f"The judge's checks raised an alarm in steps {', '.join(alarms)}."
    rollouts, unscored = (sum(getattr(row, name) for row in steps) for name in ("rollouts", "unscored"))
    told = [(row.trained, row.rollouts) for row in steps if row.trained is not None]
    trained, asked = (sum(column) for column in zip(*told, strict=True)) if told else (0, 0)
    failures: Counter[str] = Counter()
    for row in steps:
        failures.update(row.failures)
    if failures:
        ((reason, count),) = failures.most_common(1)
        yield (
            f"{failures.total()} attempts failed, and count neither as good nor as bad; {count} of them with "
            f"{reason}"
        )
    if unscored > MANY_UNSCORED * rollouts:
        yield f"{unscored} of {rollouts} attempts got no score from the judge, and taught nothing."
    if trained < HARDLY * asked:
        yield (
            f"Only {trained} of {asked} attempts could teach anything: the others were as good as their "
            "whole group, or had no score. Make attempts differ: a higher temperature, larger groups, tasks "
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
