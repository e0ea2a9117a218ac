"""The functions that older programs use: `ruler` and `ruler_score_group`."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from scripted_judges import QUESTION, attempt, entries, group_of, rewards, scripted, shown, user_text

import art
from art.errors import ConfigurationError, LlmAnswerError, LlmError
from art.rewards import ruler, ruler_score_group
from art.rewards.ruler import Response, TrajectoryScore
from art.trajectories import PydanticException
from art_extensions.testing import LlmServer, Mischief, TruthfulJudge
from waiting import DEADLINE_S


@pytest.fixture(autouse=True)
def folder(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)  # answers are kept under the current folder


def at(server: LlmServer, **params: Any) -> dict[str, Any]:
    """Arguments as programs give them, with litellm's names."""
    return {
        "judge_model": "openai/truth",
        "extra_litellm_params": {"api_base": server.base_url, "api_key": server.key, **params},
    }


def lists(*qualities: float) -> list[Any]:
    return [[QUESTION, {"role": "assistant", "content": str(quality)}] for quality in qualities]


async def test_no_lists_no_question() -> None:
    assert await ruler([], judge_model="nobody/nothing") == []


async def test_scores_come_in_the_order_of_the_lists_with_ids_from_1() -> None:
    async with LlmServer(scripted()) as server:
        scores = await ruler(lists(0.2, 0.9, 0.4), **at(server))
    assert scores == [
        TrajectoryScore(trajectory_id=str(i), explanation=f"I give {s}", score=s)
        for i, s in enumerate((0.2, 0.9, 0.4), 1)
    ]
    assert Response(scores=scores).scores == scores


async def test_options_and_tools_and_rubric_reach_the_judge() -> None:
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    async with LlmServer(scripted()) as server:
        await ruler(lists(0.2, 0.9), tools=tools, rubric="Only wit counts.", **at(server, temperature=0.2))
    [body] = server.requests
    assert body["model"] == "truth" and body["temperature"] == 0.2
    assert "<available_tools>\n" in user_text(body) and "Only wit counts." in body["messages"][0]["content"]


async def test_a_single_list_is_scored_absolutely() -> None:
    async with LlmServer(scripted()) as server:
        [score] = await ruler(lists(0.3), **at(server))
    assert score.score == 0.3 and score.trajectory_id == "1"


async def test_a_list_without_a_score_is_an_error_that_names_it() -> None:
    def answer(body: Any) -> Any:
        return entries(
            {i: float(m[-1]["content"]) for i, m in shown(body).items() if m[-1]["content"] != "0.9"}
        )

    async with LlmServer(answer) as server:
        with pytest.raises(LlmAnswerError, match=r"no score for 1 of 3 trajectories \(2: ruler: ") as caught:
            await ruler(lists(0.2, 0.9, 0.4), **at(server))
    assert isinstance(caught.value, ValueError)


@pytest.mark.slow
async def test_debug_shows_the_scores(capsys: Any) -> None:
    async with LlmServer(scripted()) as server:
        await ruler(lists(0.2, 0.9), debug=True, **at(server))
        await ruler_score_group(group_of(0.2, 0.9), debug=True, **at(server))
    decoder = json.JSONDecoder()
    out = capsys.readouterr().out.strip()
    first, end = decoder.raw_decode(out)
    second = json.loads(out[end:])
    assert first == second
    assert first["scores"][1] == {"trajectory_id": "2", "explanation": "I give 0.9", "score": 0.9}


class Mail(art.Trajectory):
    sender: str


async def test_a_scored_group_keeps_everything_that_it_had() -> None:
    group = art.TrajectoryGroup(
        [
            Mail(sender="ann", metrics={"steps": 3}, metadata={"id": "m1"}, logs=["hm"], **fields(0.2, 1.5)),
            Mail(sender="bob", initial_policy_version=4, **fields(0.9, 2)),
            ValueError("a failed attempt"),
        ],
        metadata={"scenario_id": "s1"},
        metrics={"spread": 1.0},
        logs=["made"],
    )
    before = group.model_copy(deep=True)
    async with LlmServer(scripted()) as server:
        judged = await ruler_score_group(group, **at(server))

    assert judged is not None and group == before
    assert (judged.metadata, judged.metrics, judged.logs) == (group.metadata, group.metrics, group.logs)
    assert judged.exceptions == group.exceptions and isinstance(judged.exceptions[0], PydanticException)
    ann, bob = judged.trajectories
    assert isinstance(ann, Mail) and ann.sender == "ann" and isinstance(bob, Mail)
    assert ann.metrics == {"steps": 3, "independent_reward": 1.5, "ruler_score": 0.2, "reward/ruler": 0.2}
    assert ann.logs == ["hm", "RULER explanation: I give 0.2"] and ann.metadata == {"id": "m1"}
    assert (
        ann.rollout_id == group.trajectories[0].rollout_id
        and ann.start_time == group.trajectories[0].start_time
    )
    assert (bob.reward, bob.initial_policy_version) == (0.9, 4)


def fields(quality: float, reward: float) -> dict[str, Any]:
    return {"messages_and_choices": attempt(quality).messages_and_choices, "reward": reward}


async def test_an_empty_group_is_an_empty_group() -> None:
    judged = await ruler_score_group(
        art.TrajectoryGroup([], metadata={"a": 1}),
        judge_model="openai/o3",
        extra_litellm_params={"api_key": "k"},
    )
    assert judged is not None and len(judged) == 0 and judged.metadata == {"a": 1}


async def test_where_nothing_is_scored_the_error_is_raised_or_swallowed(caplog: Any) -> None:
    async with LlmServer(TruthfulJudge(lambda _: 0.5), mischief=Mischief(fault=1.0)) as server:
        with pytest.raises(LlmError, match=r"RULER scored none of 2 trajectories: .*HTTP 500"):
            await ruler_score_group(group_of(0.1, 0.9), **at(server, num_retries=0))
        with caplog.at_level(logging.WARNING):
            swallowed = await ruler_score_group(
                group_of(0.1, 0.9), swallow_exceptions=True, **at(server, num_retries=0)
            )
    assert swallowed is None and "RULER: a group is dropped" in caplog.text


async def test_where_some_are_scored_the_group_comes_back_also_when_swallowing() -> None:
    def answer(body: Any) -> Any:
        return entries(
            {i: float(m[-1]["content"]) for i, m in shown(body).items() if m[-1]["content"] != "0.9"}
        )

    async with LlmServer(answer) as server:
        for swallow in (False, True):
            judged = await ruler_score_group(
                group_of(0.2, 0.9, 0.4), swallow_exceptions=swallow, **at(server)
            )
            assert judged is not None and rewards(judged) == [0.2, None, 0.4]


@pytest.mark.parametrize("params", [{"temprature": 1}, {"api_key": "k", "timeout": -1}])
async def test_misuse_is_raised_or_swallowed(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        await ruler_score_group(group_of(0.1), extra_litellm_params=params)
    assert (
        await ruler_score_group(group_of(0.1), extra_litellm_params=params, swallow_exceptions=True) is None
    )


async def test_a_missing_key_is_named_before_anything_is_asked(monkeypatch: Any) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        await ruler_score_group(group_of(0.1, 0.9))


async def test_a_function_judges() -> None:
    asked = []

    def judge(messages: list[dict[str, Any]]) -> dict[str, Any]:
        asked.append(messages)
        return entries({i: float(m[-1]["content"]) for i, m in shown({"messages": messages}).items()})

    assert [s.score for s in await ruler(lists(0.2, 0.9), judge_model=judge)] == [0.2, 0.9]

    async def slowly(messages: list[dict[str, Any]]) -> str:
        return json.dumps(judge(messages))

    judged = await ruler_score_group(group_of(0.2, 0.9), judge_model=slowly)
    assert judged is not None and rewards(judged) == [0.2, 0.9] and len(asked) == 2


async def test_calls_with_equal_arguments_share_a_pace_and_their_questions() -> None:
    async with LlmServer(scripted(), delay=0.05) as server:
        group = group_of(0.2, 0.9)
        both = await asyncio.gather(*(ruler_score_group(group, **at(server)) for _ in range(3)))
        assert all(judged is not None and rewards(judged) == [0.2, 0.9] for judged in both)
        await ruler_score_group(group, **at(server))
    assert len(server.requests) == 1


async def test_a_gather_judges_groups_as_they_end_and_drops_those_without_a_score() -> None:
    async def rollout(quality: float) -> art.Trajectory:
        return attempt(quality)

    def answer(body: Any) -> Any:
        scores = {i: float(m[-1]["content"]) for i, m in shown(body).items()}
        if set(scores.values()) & {0.0, 0.95}:
            raise ValueError("I like this group not")
        return entries(scores)

    async with LlmServer(answer) as server:
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(map(rollout, pair)) for pair in ((0.1, 0.9), (0.0, 0.95), (0.2, 0.9))),
            pbar_desc=None,
            after_each=lambda group: ruler_score_group(group, swallow_exceptions=True, **at(server)),
        )
    assert [rewards(group) for group in groups] == [[0.1, 0.9], [0.2, 0.9]]


async def test_a_cancellation_is_never_swallowed() -> None:
    asked = asyncio.Event()

    async def judge(*_: Any) -> Any:
        asked.set()
        await asyncio.sleep(60)

    scoring = asyncio.create_task(
        ruler_score_group(group_of(0.2, 0.9), judge_model=judge, swallow_exceptions=True)
    )
    await asyncio.wait_for(asked.wait(), DEADLINE_S)
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
