"""A judge over HTTP, a real server: what is known of the judge is in the log and in the step's record."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import art
from art.rewards import Ruler
from art.tracking.step_record import read_rollouts
from art.wire.jobs import BalanceSheet
from art.wire.rollout_record import RolloutRecord, sum_of_lines
from art_extensions.testing import LlmServer, TruthfulJudge

QUESTION = {"role": "user", "content": "yes, no or maybe?"}


def quality(messages: list[dict[str, Any]]) -> float:
    """Anything that tells attempts apart."""
    return sum(map(ord, str(messages[-1]["content"]))) % 10 / 10


async def play(model: art.TrainableModel) -> art.Trajectory:
    said = art.Trajectory(messages_and_choices=[QUESTION])
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=said.messages(), max_tokens=6
    )
    said.messages_and_choices.append(completion.choices[0])
    return said


ENDS = {1: 100, 90: 100, 92: 80, 60: 60, 15: 40}
"""Of the nano model's tokens `"`, `{`, `}`, `]` and 0, in this order: a verdict in few words."""


async def judged_by_its_own_base(model: art.TrainableModel, group: art.TrajectoryGroup, ledger: Path) -> None:
    """The trained model's base judges, the adapter off. The grammar of the schema makes a verdict of what a
    model of this size says; its scores mean nothing.
    """
    from art.rewards import Rubric

    params = {"max_tokens": 100, "temperature": 0, "extra_body": {"logit_bias": ENDS}}
    rubric = Rubric({"short": "Short."}, model, standards="-", params=params, cache=False)
    judged = await rubric.score_group(group)

    totals, distinct = rubric.channel.totals, {str(one.messages()) for one in group}
    assert [one.reward for one in judged] == [0.0] * len(group)
    assert all(one.metrics["rubric/short"] == 0.0 and "short 0: " in one.logs[-1] for one in judged)
    assert (totals.calls, totals.failures, totals.repairs) == (len(distinct), 0, 0)
    assert totals.usd == 0 and totals.prompt_tokens > 500 * len(distinct) and totals.completion_tokens > 0
    rows = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True).execute(
        "select model, step, adapter from samples"
    )
    asked = Counter(rows.fetchall())
    assert asked[model.base_model, None, None] == len(distinct)
    assert {row for row in asked if row[0] != model.base_model} == {("judged", 0, "p/judged@0")}


@pytest.mark.slow
@pytest.mark.extension
async def test_the_log_and_the_steps_record_say_how_the_judge_did(tmp_path: Path) -> None:
    from art.rewards import CalibrationGroup, JudgeChecks, Rubric

    known = CalibrationGroup(
        trajectories=tuple([QUESTION, {"role": "assistant", "content": word}] for word in ("a", "b", "c")),
        quality=(0.7, 0.8, 0.9),
    )
    model = art.TrainableModel(name="judged", project="p", base_model="art/nano")
    async with LlmServer(TruthfulJudge(quality)) as judge, art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        where = {"base_url": judge.base_url, "api_key": judge.key, "cache": False}
        checks = JudgeChecks(
            agreement_share=1,
            holdout=Rubric({"good": "It is good."}, "gold", **where),
            holdout_share=1,
            calibration=(known,),
            length_alarm=None,
            window=2,
        )
        price = {"input_cost_per_token": 1e-6, "output_cost_per_token": 4e-6}
        ruler = Ruler("truth", checks=checks, params=price, **where)
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(play(model) for _ in range(4)) for _ in range(2)),
            after_each=ruler.score_group,
        )
        result = await model.train(groups)
        await judged_by_its_own_base(model, groups[0], tmp_path / "server" / "ledger.sqlite")

    folder = tmp_path / "p" / "models" / "judged"
    row = json.loads((folder / "history.jsonl").read_text().splitlines()[-1])
    record = json.loads((folder / "checkpoints" / "0001" / "job.json").read_text())["result"]["metrics"]
    for name, value in {
        "agreement": 1.0,
        "order_difference": 0.0,
        "holdout_gap": 0.0,
        "holdout_agreement": 1.0,
        "calibration": 1.0,
        "check_failed": 0.0,
        "alarm": 0.0,
    }.items():
        assert record[f"group_judge/{name}"] == row[f"train/group_judge/{name}"] == value, name
    assert record["group_judge/holdout"] == result.metrics["group_judge/holdout"] > 0
    assert record["group_judge/divergence"] == 0
    assert result.sheet is not None
    the_record_has_the_judge(read_rollouts(folder, 1), groups, ruler, result.sheet)


def the_record_has_the_judge(
    lines: list[RolloutRecord], groups: list[art.TrajectoryGroup], ruler: Ruler, sheet: BalanceSheet
) -> None:
    assert {name: row.rollouts for name, row in sum_of_lines(lines).items()} == {
        name: row.rollouts for name, row in sheet.fates.items() if row.rollouts
    }
    trajectories = [one for group in groups for one in group]
    price = 0.0
    for line, trajectory in zip(lines, trajectories, strict=True):
        judge = line.judge
        assert judge is not None and judge.name == "truth" and judge.score == trajectory.reward == line.reward
        assert judge.words and f"RULER explanation: {judge.words}" in trajectory.logs
        assert judge.second == judge.score, "a judge that is sure says the same in the reverse order"
        assert (judge.question == ruler.scorer.question) == (line.place == 0)
        price += judge.price_usd or 0.0
    assert price == pytest.approx(ruler.channel.totals.usd) and price > 0
    for number, group in enumerate(groups):
        of_group = [one for one in lines if one.group == number]
        shown = {str(trajectory.messages()): one for trajectory, one in zip(group, of_group, strict=True)}
        places = [one.judge.order for one in shown.values() if one.judge is not None]
        assert sorted(places) == list(range(len(shown))), "equal ones are shown once"
