"""The class `Ruler`: kept answers, costs, checks, sums, and groups judged while others are sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scripted_judges import attempt, entries, group_of, rewards, ruler_at, scripted, shown

import art
from art.errors import ConfigurationError, NotRegisteredError
from art.metrics import MetricsBuilder
from art.rewards import Reward, Ruler, Score
from art.rewards.llm import AnswerCache, Budget
from art_extensions.testing import LlmServer, TruthfulJudge

PRICED = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
"""US dollars."""


def rows_of(model: art.Model) -> list[dict[str, Any]]:
    text = Path(model._get_output_dir(), "history.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


async def test_a_run_that_goes_on_does_not_pay_twice(tmp_path: Path) -> None:
    group = group_of(0.2, 0.9, 0.5)
    other_order = art.TrajectoryGroup(group.trajectories[::-1])
    async with LlmServer(scripted()) as server:
        first = ruler_at(server, cache=tmp_path / "answers.sqlite3")
        assert rewards(await first.score_group(group)) == [0.2, 0.9, 0.5]
        resumed = ruler_at(server, cache=AnswerCache(tmp_path / "answers.sqlite3"))
        assert rewards(await resumed.score_group(group)) == [0.2, 0.9, 0.5]
        assert rewards(await resumed.score_group(other_order)) == [0.5, 0.9, 0.2]
    assert len(server.requests) == 1
    assert (first.channel.totals.calls, resumed.channel.totals.calls) == (1, 0)
    assert resumed.channel.totals.cached == 2


async def test_answers_are_kept_in_the_project_s_folder_unless_said_otherwise(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    async with LlmServer(scripted()) as server:
        await ruler_at(server, cache=False).score_group(group_of(0.2, 0.9))
        assert not (tmp_path / ".art").exists()
        await ruler_at(server, cache=True).score_group(group_of(0.2, 0.9))
    assert (tmp_path / ".art" / "llm-cache.sqlite3").exists() and len(server.requests) == 2


async def test_another_rubric_is_another_question(tmp_path: Path) -> None:
    async with LlmServer(scripted()) as server:
        for rubric in ("Be brief.", "Be kind.", "Be brief."):
            ruler = ruler_at(server, cache=tmp_path / "answers.sqlite3", rubric=rubric)
            await ruler.score_group(group_of(0.2, 0.9))
    assert len(server.requests) == 2


async def test_what_a_judge_costs_is_logged_where_a_builder_is_active() -> None:
    builder = MetricsBuilder("train")
    async with LlmServer(scripted()) as server:
        ruler = ruler_at(server, params=PRICED)
        with builder.activate_context():
            judged = await ruler.score_group(group_of(0.2, 0.9))
    row = await builder.flush()
    usage = ruler.channel.totals
    assert row["costs/train/judge/ruler"] == pytest.approx(usage.usd)
    assert usage.prompt_tokens and usage.completion_tokens
    assert usage.usd == pytest.approx(1e-6 * usage.prompt_tokens + 2e-6 * usage.completion_tokens)
    assert not [name for name in judged.metrics if name.startswith("costs/")]


async def test_without_a_builder_the_cost_of_a_step_is_in_its_row(tmp_path: Path) -> None:
    model = art.Model(name="agent", project="tests", base_path=str(tmp_path), report_metrics=[])
    async with LlmServer(scripted()) as server:
        ruler = ruler_at(server, params=PRICED)
        groups = [await ruler.score_group(group_of(low, 0.9)) for low in (0.2, 0.3)]
        await model.log(groups, split="train", step=1)
    row = rows_of(model)[0]
    assert row["costs/judge/ruler"] == pytest.approx(ruler.channel.totals.usd)
    assert ruler.channel.totals.usd > 0 and ruler.channel.totals.calls == 2


def test_a_budget_in_dollars_needs_a_price() -> None:
    with pytest.raises(ConfigurationError, match="price"):
        Ruler("mine", base_url="http://127.0.0.1:1/v1", budget=Budget(usd=1.0))


@pytest.mark.extension
async def test_checks_report_in_the_group_s_metrics() -> None:
    async with LlmServer(TruthfulJudge(lambda m: float(m[-1]["content"]))) as server:
        from art.rewards import JudgeChecks

        ruler = ruler_at(server, checks=JudgeChecks(agreement_share=1.0))
        judged = await ruler.score_group(group_of(0.2, 0.9, 0.5))
    assert judged.metrics["judge/agreement"] == 1.0 and judged.metrics["judge/alarm"] == 0.0
    assert len(server.requests) == 2


class Form(Reward):
    name = "form"

    async def scores(self, group: art.TrajectoryGroup) -> list[Score]:
        return [Score(value=1.0 if len(t.messages()[-1]["content"]) == 3 else 0.0) for t in group]


async def test_it_is_a_term_of_a_sum() -> None:
    async with LlmServer(scripted()) as server:
        reward = 0.7 * ruler_at(server) + 0.3 * Form()
        judged = await reward.score_group(group_of(0.5, 0.25))
    assert rewards(judged) == pytest.approx([0.65, 0.175])
    assert judged.trajectories[0].metrics["reward/ruler"] == 0.5


async def test_two_judges_of_one_group_keep_their_names_apart() -> None:
    async with LlmServer(scripted()) as server:
        reward = ruler_at(server, name="wit") + ruler_at(server, name="truth", rubric="Only truth counts.")
        judged = await reward.score_group(group_of(0.5, 0.25))
    metrics = judged.trajectories[0].metrics
    assert metrics["reward/wit"] == metrics["wit_score"] == metrics["truth_score"] == 0.5
    assert judged.trajectories[0].logs == ["wit explanation: I give 0.5", "truth explanation: I give 0.5"]


async def test_groups_are_judged_while_others_are_sampled() -> None:
    judged_first = asyncio.Event()

    async def rollout(quality: float, *, waits: bool) -> art.Trajectory:
        if waits:
            # Only the judgement of the first group lets the second one be sampled.
            await asyncio.wait_for(judged_first.wait(), 60)
        return attempt(quality)

    async with LlmServer(scripted()) as server:
        ruler = ruler_at(server)

        async def after(group: art.TrajectoryGroup) -> art.TrajectoryGroup:
            judged = await ruler.score_group(group)
            judged_first.set()
            return judged

        groups = await art.gather_trajectory_groups(
            [
                art.TrajectoryGroup(rollout(q, waits=False) for q in (0.1, 0.9)),
                art.TrajectoryGroup(rollout(q, waits=True) for q in (0.2, 0.8)),
            ],
            pbar_desc=None,
            after_each=after,
        )
        plain = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout(q, waits=False) for q in (0.3, 0.6))],
            pbar_desc=None,
            after_each=ruler.score_group,
        )
    assert [rewards(group) for group in [*groups, *plain]] == [[0.1, 0.9], [0.2, 0.8], [0.3, 0.6]]


async def test_a_prompted_model_judges() -> None:
    async with LlmServer(scripted()) as server:
        judge = art.Model(
            name="judge",
            project="tests",
            inference_base_url=server.base_url,
            inference_api_key=server.key,
            inference_model_name="truth-7b",
        )
        judged = await Ruler(judge, cache=False).score_group(group_of(0.2, 0.9))
    assert rewards(judged) == [0.2, 0.9] and server.requests[0]["model"] == "truth-7b"


async def test_a_trainable_model_judges_as_its_base() -> None:
    async with LlmServer(scripted()) as server:
        model = art.TrainableModel(name="agent", project="tests", base_model="Qwen/Qwen3-14B")
        ruler = Ruler(model, cache=False)
        with pytest.raises(NotRegisteredError):
            await ruler.score_group(group_of(0.2, 0.9))
        model.inference_base_url, model.inference_api_key = server.base_url, server.key
        judged = await ruler.score_group(group_of(0.2, 0.9))
    assert rewards(judged) == [0.2, 0.9] and server.requests[0]["model"] == "Qwen/Qwen3-14B"


async def test_an_endpoint_without_schemas_judges() -> None:
    def answer(body: Mapping[str, Any]) -> Any:
        return entries({i: float(messages[-1]["content"]) for i, messages in shown(body).items()})

    async with LlmServer(answer, formats=["text"]) as server:
        judged = await ruler_at(server).score_group(group_of(0.2, 0.9))
    assert rewards(judged) == [0.2, 0.9]
    assert '"trajectory_id"' in server.requests[-1]["messages"][0]["content"]
