"""Before and after, compared without flattery: an interval, and what the numbers do not show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from art import Trajectory
from art.rewards.ruler import Ruler
from art.runs.folder import StepRow
from art_extensions.scenarios.autorl import AutoRLReport, Comparison, compare
from art_extensions.scenarios.autorl.preparation import Inputs
from art_extensions.testing import LlmServer, Mischief, TruthfulJudge


def attempt(text: str, quality: float, *, chars: int = 10, cut: float = 0.0) -> Trajectory:
    answer = f"{quality:.2f}".ljust(chars, ".")
    return Trajectory(
        messages_and_choices=[{"role": "user", "content": text}, {"role": "assistant", "content": answer}],
        reward=0.0,
        metrics={"answer_chars": float(chars), "cut": cut},
        metadata={"input": text},
    )


def quality(messages: Sequence[Mapping[str, Any]]) -> float:
    return float(str(messages[-1]["content"]).rstrip("."))


def side(values: Sequence[float], **options: Any) -> list[list[Trajectory]]:
    """Two rollouts of each input, a little apart."""
    return [
        [attempt(f"input {index}", value + more, **options) for more in (0.0, 0.02)]
        for index, value in enumerate(values)
    ]


async def compared(
    before: Sequence[Sequence[Trajectory]],
    after: Sequence[Sequence[Trajectory]],
    *,
    mischief: Mischief | None = None,
    measured: bool = False,
) -> Comparison:
    texts = [f"input {index}" for index in range(len(before))]
    async with LlmServer(TruthfulJudge(quality), mischief=mischief) as server:
        judge = Ruler("judge", base_url=server.base_url, api_key=server.key, cache=False, attempts=1)
        return await compare(
            texts,
            before,
            after,
            per_task=2,
            judge=judge,
            measure=(lambda one: quality(one.messages())) if measured else None,
        )


def report(comparison: Comparison, **changed: Any) -> AutoRLReport:
    count = len(comparison.tasks)
    row = StepRow(
        step=1,
        reward=0.5,
        rollouts=8,
        failed=0,
        unscored=0,
        trained=8,
        learning_rate=1e-5,
        seconds_rollouts=1.0,
        seconds_training=1.0,
        figures={"answer_chars": 10.0, "cut": 0.0},
    )
    values: dict[str, Any] = {
        **{"task": "a task", "base_model": "base", "model": "p/m", "step": 1, "wanted": (2, count)},
        "inputs": Inputs(train=("a", "b"), test=tuple(str(index) for index in range(count))),
        **{
            "system_prompt": "",
            "rubric": "- good",
            "prepared": {},
            "steps": (row,),
            "comparison": comparison,
        },
        **{"same_judge": False, "costs": {}, "seconds": 1.0, "stopped": None, "folder": Path("x")},
    }
    return AutoRLReport(**(values | changed))


async def test_a_clear_gain_is_a_gain() -> None:
    both = await compared(side([0.2, 0.3, 0.4, 0.3]), side([0.5, 0.6, 0.6, 0.7]), measured=True)
    assert (both.wins, both.ties, both.losses, both.unjudged) == (4, 0, 0, 0)
    assert both.judged is not None and both.judged.mean == pytest.approx(0.3)
    assert both.judged == both.measured and both.judged.above_zero
    assert both.before.judged == pytest.approx(0.31) and both.after.figures["measure"] == pytest.approx(0.61)
    told = report(both)
    assert told.verdict == "better"
    assert "**The judge prefers the rollouts after training: +0.30 (95 % interval" in told.to_markdown()


async def test_a_gain_that_may_be_chance_is_not_called_one() -> None:
    both = await compared(side([0.2, 0.6, 0.4, 0.3]), side([0.5, 0.5, 0.6, 0.2]))
    assert both.judged is not None and both.judged.mean > 0
    told = report(both)
    assert told.verdict == "no difference shown" and (both.wins, both.losses) == (2, 2)
    assert "No difference could be shown (test inputs: 4)" in told.to_markdown()
    assert any("4 test inputs are few" in text for text in told.cautions)


async def test_a_loss_is_a_loss_and_equal_answers_are_even() -> None:
    worse = await compared(side([0.5, 0.6, 0.6, 0.7]), side([0.2, 0.3, 0.4, 0.3]))
    assert report(worse).verdict == "worse"
    assert "prefers the rollouts from before" in report(worse).to_markdown()
    even = await compared(side([0.5, 0.6]), side([0.5, 0.6]))
    assert (even.ties, report(even).verdict) == (2, "no difference shown")


async def test_what_was_not_judged_is_not_counted() -> None:
    none = await compared(side([0.2, 0.3]), side([0.8, 0.9]), mischief=Mischief(fault=1))
    assert none.judged is None and none.unjudged == 2 and none.after.judged is None
    told = report(none)
    assert told.verdict == "not judged" and "nothing is known" in told.to_markdown()
    missing = await compared([[], *side([0.2, 0.3])], side([0.1, 0.8, 0.9]))
    assert (missing.unjudged, missing.before.failed, missing.wins) == (1, 2, 2)


async def test_the_report_says_what_speaks_against_it() -> None:
    both = await compared(side([0.2, 0.3], chars=10), side([0.8, 0.9], chars=100, cut=1.0))
    row = report(both).steps[0]
    bad = report(
        both,
        same_judge=True,
        wanted=(9, 2),
        stopped="the budget is spent",
        steps=(StepRow(**(vars(row) | {"unscored": 4, "trained": 2, "judge": {"judge/alarm": 0.5}})),),
    )
    cautions = " ".join(bad.cautions)
    for words in (
        *("is the one that trained", "2 test inputs are few", "grew from 10 to 100 characters"),
        *("100% of the answers after training end", "where 9 and 2 were asked for", "the budget is spent"),
        *("4 of 8 rollouts got no score", "Only 2 of 8 rollouts could teach"),
        "raised an alarm in steps 1",
    ):
        assert words in cautions and words in bad.to_markdown()
    plain = json.loads(json.dumps(bad.to_dict()))
    assert plain["verdict"] == bad.verdict and plain["comparison"]["judged"]["count"] == 2
