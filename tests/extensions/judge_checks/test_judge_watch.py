"""A judge watched over a run: what is asked when, which figures come of it, which alarms ring."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from formula_judge import FormulaJudge, attempts

from art.errors import ConfigurationError, LlmUnavailableError
from art.rewards import Alarm, CalibrationGroup, JudgeChecks, calibrate
from art.rewards.function_reward import FunctionReward
from art.rewards.judge_view import views_of
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored
from art_extensions.judge_checks.watch import JudgeWatch

RIGHT = "12"


async def watched(watch: JudgeWatch, judge: FormulaJudge, group: TrajectoryGroup) -> dict[str, float]:
    """Score a group and check the scores, as a judged reward does."""
    views = views_of(group)
    return await watch.check_scores(views, await judge.score(views), group)


def honest(answer: str, place: int) -> float:
    return float(answer.startswith(RIGHT))


def by_place(answer: str, place: int) -> float:
    return 1.0 - place / 10


def by_length(answer: str, place: int) -> float:
    return len(answer) / 10


def numbered(number: int, *, step: int | None = None) -> Any:
    """A group of its own content: right, nearly right, wrong, wrong and long."""
    return attempts(f"{RIGHT} {number}", f"13 {number}", f"1 {number}", f"it is long {number}", step=step)


async def run(judge: FormulaJudge, groups: int, **checks: Any) -> list[dict[str, float]]:
    watch = JudgeWatch(judge, JudgeChecks(**checks))
    return [await watched(watch, judge, numbered(number)) for number in range(groups)]


async def test_the_second_opinion_costs_only_the_sampled_share() -> None:
    judge = FormulaJudge(honest)
    figures = await run(judge, 400, agreement_share=0.2)
    second = [order for order, salt in judge.asked if salt]
    sampled = [one for one in figures if "judge/agreement" in one]
    assert len(judge.asked) == 400 + len(second)
    assert len(second) == len(sampled)
    assert 50 < len(second) < 110
    assert all(one["judge/agreement"] == 1.0 and one["judge/order_difference"] == 0 for one in sampled)


async def test_the_same_groups_are_sampled_again_and_another_seed_takes_others() -> None:
    def sampled(figures: list[dict[str, float]]) -> list[int]:
        return [number for number, one in enumerate(figures) if "judge/agreement" in one]

    first = sampled(await run(FormulaJudge(honest), 60, agreement_share=0.3))
    again = sampled(await run(FormulaJudge(honest), 60, agreement_share=0.3))
    other = sampled(await run(FormulaJudge(honest), 60, agreement_share=0.3, seed=1))
    assert first == again != other


async def test_no_share_asks_nothing_and_reports_nothing() -> None:
    judge = FormulaJudge(honest)
    figures = await run(judge, 20, agreement_share=0)
    assert len(judge.asked) == 20
    assert set().union(*figures) == {"judge/length_correlation", "judge/alarm", "judge/alarm_length"}


async def test_a_judge_that_goes_by_place_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "art.rewards"):
        figures = await run(FormulaJudge(by_place, name="dizzy"), 20, agreement_share=1)
    assert figures[-1]["judge/agreement"] < 0.5
    assert figures[-1]["judge/order_difference"] > 0.1
    assert figures[-1]["judge/alarm"] == figures[-1]["judge/alarm_agreement"] == 1
    assert figures[0]["judge/alarm"] == 0  # too little was known
    (told,) = [record.getMessage() for record in caplog.records]
    assert "'dizzy'" in told and "another order" in told


async def test_a_judge_that_goes_by_length_is_told_once() -> None:
    told: list[Alarm] = []
    figures = await run(FormulaJudge(by_length), 30, agreement_share=0, on_alarm=told.append)
    assert figures[-1]["judge/length_correlation"] == pytest.approx(1.0)
    assert [alarm.check for alarm in told] == ["length"]
    assert told[0].value == pytest.approx(1.0) and told[0].limit == 0.6
    quiet = await run(FormulaJudge(by_length), 30, agreement_share=0, length_alarm=None)
    assert quiet[-1]["judge/alarm"] == 0 and "judge/alarm_length" not in quiet[-1]


async def test_a_few_pairs_ring_no_length_alarm() -> None:
    """Two groups of four: anything may come out longest."""
    few = await run(FormulaJudge(by_length), 2, agreement_share=0, window=2)
    assert few[-1]["judge/length_correlation"] == pytest.approx(1.0) and few[-1]["judge/alarm"] == 0


async def test_what_on_alarm_raises_ends_the_scoring() -> None:
    def stop(alarm: Alarm) -> None:
        raise RuntimeError(str(alarm))

    with pytest.raises(RuntimeError, match="longer is scored higher"):
        await run(FormulaJudge(by_length), 30, agreement_share=0, on_alarm=stop)


async def test_a_holdout_is_asked_on_its_slice() -> None:
    holdout = FormulaJudge(honest, name="gold")
    figures = await run(FormulaJudge(honest), 200, agreement_share=0, holdout=holdout, holdout_share=0.25)
    slices = [one for one in figures if "judge/holdout_gap" in one]
    assert len(slices) == len(holdout.asked)
    assert 30 < len(slices) < 75
    assert slices[-1]["judge/holdout"] == pytest.approx(0.25)
    assert slices[-1]["judge/holdout_gap"] == 0 and slices[-1]["judge/holdout_agreement"] == 1
    assert slices[-1]["judge/divergence"] == 0 and slices[-1]["judge/alarm"] == 0


async def test_each_policy_step_has_a_slice() -> None:
    judge, holdout = FormulaJudge(honest), FormulaJudge(honest)
    watch = JudgeWatch(judge, JudgeChecks(agreement_share=0, holdout=holdout, holdout_share=0))
    sliced = []
    for step in (0, 0, 0, 1, 1, 2):
        figures = await watched(watch, judge, numbered(len(sliced), step=step))
        sliced.append("judge/holdout" in figures)
    assert sliced == [True, False, False, True, False, True]


async def test_a_judge_that_rises_above_the_holdout_is_told() -> None:
    """A policy that pleads more and more: the judge is swayed, the hold-out sees it get worse."""

    def swayed(answer: str, place: int) -> float:
        return min(1.0, honest(answer, place) + 0.1 * answer.count("please"))

    judge, told = FormulaJudge(swayed), list[Alarm]()
    checks = JudgeChecks(
        agreement_share=0, holdout=FormulaJudge(honest), holdout_share=1, window=8, on_alarm=told.append
    )
    watch = JudgeWatch(judge, checks)
    history = []
    for number in range(40):
        plea = " please" * (number // 4)
        group = attempts(f"{RIGHT} {number}", f"13 {number}{plea}", f"14 {number}{plea}")
        history.append(await watched(watch, judge, group))
    assert "divergence" in [alarm.check for alarm in told]
    assert history[-1]["judge/divergence"] > 0.3
    rang = [number for number, one in enumerate(history) if one.get("judge/alarm_divergence")]
    assert rang[0] > 8 and rang[-1] == 39


async def test_a_holdout_that_gives_no_numbers_is_a_check_that_failed() -> None:
    nothing = FunctionReward(lambda trajectory: float("nan"), name="gold")
    on = {"agreement_share": 0, "holdout_share": 1}
    [figures] = await run(FormulaJudge(honest), 1, holdout=nothing, **on)
    assert figures["judge/check_failed"] == 1 and "judge/holdout" not in figures
    short = FunctionReward(lambda group: [1.0], name="gold", sees="group")
    with pytest.raises(ConfigurationError, match="gave 1 scores for 4"):
        await run(FormulaJudge(honest), 1, holdout=short, **on)


async def test_a_holdout_whose_key_is_refused_ends_a_run_only_at_its_beginning() -> None:
    def refused(answer: str, place: int) -> float:
        raise ConfigurationError("does not accept the key")

    holdout = FormulaJudge(honest)
    judge = FormulaJudge(honest)
    watch = JudgeWatch(judge, JudgeChecks(agreement_share=0, holdout=holdout, holdout_share=1))
    await watched(watch, judge, numbered(0))
    holdout.formula = refused
    assert (await watched(watch, judge, numbered(1)))["judge/check_failed"] == 1
    with pytest.raises(ConfigurationError, match="does not accept the key"):
        await run(judge, 1, agreement_share=0, holdout=FormulaJudge(refused), holdout_share=1)


async def test_a_holdout_that_ranks_otherwise_is_told_at_once() -> None:
    holdout = FormulaJudge(lambda answer, place: -by_length(answer, place))
    figures = await run(
        FormulaJudge(by_length), 12, agreement_share=0, holdout=holdout, holdout_share=1, length_alarm=None
    )
    assert figures[-1]["judge/holdout_agreement"] < -0.5
    assert figures[-1]["judge/holdout_conflict"] > 0.1
    assert figures[-1]["judge/alarm_holdout"] == 1 and figures[-1]["judge/alarm_divergence"] == 0


KNOWN = CalibrationGroup(
    trajectories=(
        [{"role": "assistant", "content": RIGHT}],
        [{"role": "assistant", "content": "a long one"}],
    ),
    quality=(1, 0),
)


async def test_calibration_counts_pairs_in_their_true_order() -> None:
    three = CalibrationGroup(trajectories=attempts(RIGHT, "13", "13, or so").trajectories, quality=(1, 0, 0))
    assert (await calibrate(FormulaJudge(honest), [KNOWN, three])).accuracy == 1
    assert (await calibrate(FormulaJudge(by_length), [KNOWN, three])).accuracy == pytest.approx(0.5 / 3)
    blind = await calibrate(FormulaJudge(lambda answer, place: 0.5), [three])
    assert (blind.pairs, blind.accuracy) == (2, 0.5)


async def test_calibration_is_judged_at_first_and_every_so_often() -> None:
    judge = FormulaJudge(by_length)
    figures = await run(judge, 25, agreement_share=0, calibration=(KNOWN,), calibration_every=10)
    judged = [number for number, one in enumerate(figures) if "judge/calibration" in one]
    assert judged == [0, 10, 20]
    salts = [salt for _, salt in judge.asked if salt]
    assert len(set(salts)) == 3  # each time anew: a cache would hide a judge that has changed
    assert figures[0]["judge/alarm_calibration"] == 1


async def test_a_check_that_fails_is_told_and_costs_no_reward(caplog: pytest.LogCaptureFixture) -> None:
    class Absent(FormulaJudge):
        async def score(self, *args: Any, **kwargs: Any) -> Any:
            raise LlmUnavailableError("nobody answers")

    def lost(answer: str, place: int) -> Any:
        return Unscored("no answer in time")

    for holdout, words in ((Absent(honest), "nobody answers"), (FormulaJudge(lost), "no answer in time")):
        with caplog.at_level(logging.WARNING, "art.rewards"):
            figures = await run(FormulaJudge(honest), 1, agreement_share=0, holdout=holdout, holdout_share=1)
        assert figures[0]["judge/check_failed"] == 1 and "judge/holdout" not in figures[0]
        assert f"hold-out failed, its figure is missing: {words}" in caplog.text


async def test_a_reward_of_any_kind_may_be_the_holdout() -> None:
    def gold(trajectory: Trajectory) -> float:
        return honest(str(trajectory.messages()[-1]["content"]), 0)

    holdout = FunctionReward(gold)
    figures = await run(FormulaJudge(honest), 1, agreement_share=0, holdout=holdout, holdout_share=1)
    assert figures[0]["judge/holdout_agreement"] == 1 and figures[0]["judge/check_failed"] == 0


async def test_a_resumed_run_goes_on_with_its_windows(tmp_path: Path) -> None:
    file = tmp_path / "run" / "checks.jsonl"
    options: dict[str, Any] = {"agreement_share": 0, "window": 8, "record": file}
    whole = await run(FormulaJudge(by_length), 20, **{**options, "record": None})
    await run(FormulaJudge(by_length), 7, **options)
    file.write_text(file.read_text() + '{"key": "cut of')  # killed in the middle of a line
    resumed = await run(FormulaJudge(by_length), 20, **options)  # begins with the same seven groups
    assert resumed[-1] == whole[-1]
    assert len(file.read_text().splitlines()) == 20
    assert resumed[0]["judge/alarm_length"] == 1  # seven groups were known already


async def test_judges_of_one_sum_may_have_one_file(tmp_path: Path) -> None:
    """Each goes on with its own windows, though both saw the same groups."""
    file = tmp_path / "checks.jsonl"
    options: dict[str, Any] = {"agreement_share": 0, "window": 8, "record": file}
    first, second = FormulaJudge(by_length, name="first"), FormulaJudge(honest, name="second")
    alone = await run(second, 20, **{**options, "record": None})
    await run(first, 20, **options)
    await run(second, 7, **options)
    resumed = await run(FormulaJudge(honest, name="second"), 20, **options)
    assert resumed[-1] == alone[-1] != (await run(first, 20, **options))[-1]
    assert len(file.read_text().splitlines()) == 40


async def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"step": 3}\n')
    with pytest.raises(ConfigurationError, match=r"line 1.*no line of a judge's record"):
        JudgeWatch(FormulaJudge(honest), JudgeChecks(record=file))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agreement_share": 1.5}, "agreement_share=1.5"),
        ({"holdout_share": -0.1}, "holdout_share=-0.1"),
        ({"length_alarm": float("nan")}, "length_alarm=nan"),
        ({"window": 1}, "window=1"),
        ({"calibration_every": 0}, "calibration_every=0"),
        ({"calibration": ("a",)}, "holds a str"),
        ({"holdout": "openai/o3"}, "holdout='openai/o3'.*Ruler"),
    ],
)
def test_options_that_could_not_act_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        JudgeChecks(**options)


def test_a_calibration_group_needs_an_order() -> None:
    with pytest.raises(ConfigurationError, match="orders nothing"):
        CalibrationGroup(trajectories=([], []), quality=(1, 1))
    with pytest.raises(ConfigurationError, match="one finite number for each"):
        CalibrationGroup(trajectories=([], []), quality=(1,))
