"""RULER where a program's tests have put a function in place of `art.rewards.ruler.acompletion`."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

import art
from art.errors import LlmAnswerError, LlmError, MissingExtraError
from art.metrics import MetricsBuilder
from art.rewards import Ruler, ruler, ruler_score_group
from art.rewards.ruler import Response, shared_ruler
from art.types import Unscored

module = importlib.import_module("art.rewards.ruler")
Fake = Callable[..., list[dict[str, Any]]]


def group_of(*answers: str) -> art.TrajectoryGroup:
    question = {"role": "user", "content": "Say how good you are."}
    return art.TrajectoryGroup(
        art.Trajectory(
            messages_and_choices=[question, {"role": "assistant", "content": answer}],  # type: ignore[list-item]
            reward=0.25,
        )
        for answer in answers
    )


def entry(identity: str, score: Any) -> dict[str, Any]:
    return {"trajectory_id": identity, "explanation": f"it is {identity}", "score": score}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The requests of a function that scores the trajectories 0.1, 0.2 and so on, in the order shown."""
    requests: list[dict[str, Any]] = []

    async def acompletion(**request: Any) -> Any:
        requests.append(request)
        shown = request["messages"][-1]["content"].count("<trajectory id=")
        scores = [entry(str(i), i / 10) for i in range(1, shown + 1)]
        message = SimpleNamespace(content=json.dumps({"scores": scores}))
        usage = SimpleNamespace(prompt_tokens=1000, completion_tokens=100)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)], usage=usage)

    monkeypatch.setattr(module, "acompletion", acompletion)
    return requests


async def test_a_group_gets_the_scores_by_place(asked: list[dict[str, Any]]) -> None:
    group = group_of("excellent", "bad", "bad", "ugly")  # equal ones have a place each
    judged = await ruler_score_group(group, "openai/o3", {"api_base": "http://nowhere"}, rubric="Wit counts.")
    assert judged is not None and [t.reward for t in judged] == [0.1, 0.2, 0.3, 0.4]
    assert [t.metrics["ruler_score"] for t in judged] == [0.1, 0.2, 0.3, 0.4]
    assert all(t.metrics["independent_reward"] == 0.25 for t in judged)
    assert judged.trajectories[1].logs[-1] == "RULER explanation: it is 2"
    [request] = asked
    assert request["model"] == "openai/o3" and request["api_base"] == "http://nowhere"
    assert request["response_format"] is Response and request["caching"] is False
    system, user = request["messages"]
    assert system["role"] == "system" and "Wit counts." in system["content"]
    places = [user["content"].index(f'<trajectory id="{i}">') for i in range(1, 5)]
    assert places == sorted(places) and places[0] < user["content"].index("excellent") < places[1]


async def test_the_function_ruler_asks_it_too(asked: list[dict[str, Any]]) -> None:
    scores = await ruler([trajectory.messages() for trajectory in group_of("a", "b")], "o3")
    assert [(score.trajectory_id, score.score) for score in scores] == [("1", 0.1), ("2", 0.2)]
    assert len(asked) == 1


async def test_its_cost_is_the_judges(asked: list[dict[str, Any]]) -> None:
    builder = MetricsBuilder("train")
    with builder.activate_context():
        await ruler_score_group(group_of("a", "b"), "openai/gpt-4.1")
        await ruler_score_group(group_of("a", "b"), "a model without a price")
    assert (await builder.flush())["costs/train/judge/ruler"] == pytest.approx(0.0028)
    assert len(asked) == 2


@pytest.mark.parametrize("content", ["no JSON", json.dumps({"scores": [entry("7", 0.5)]}), None])
async def test_an_answer_without_scores_is_an_error(
    content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def acompletion(**_: Any) -> Any:
        return {"choices": [{"message": {"content": content}}]}

    with patch.object(module, "acompletion", acompletion):
        with pytest.raises(LlmAnswerError, match="acompletion gave no answer of the right form"):
            await ruler_score_group(group_of("a", "b"))
        assert await ruler_score_group(group_of("a", "b"), swallow_exceptions=True) is None
    assert "a group is dropped" in caplog.text


async def test_a_score_that_is_left_out_is_unscored_and_a_failure_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def half(**_: Any) -> Any:
        answer = json.dumps({"scores": [entry("1", 0.5), entry("2", "x")]})
        return {"choices": [{"message": {"content": answer}}]}

    async def fails(**_: Any) -> Any:
        raise TimeoutError("nobody is there")

    monkeypatch.setattr(module, "acompletion", half)
    judged = await ruler_score_group(group_of("a", "b"))
    assert judged is not None
    first, second = (trajectory.reward for trajectory in judged)
    assert first == 0.5 and isinstance(second, Unscored) and "its score is no number" in second.reason
    monkeypatch.setattr(module, "acompletion", fails)
    with pytest.raises(LlmError, match="acompletion raised TimeoutError: nobody is there"):
        await ruler_score_group(group_of("a", "b"))


async def test_the_name_is_there_and_its_own_function_is_no_replacement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from art.rewards.ruler import acompletion

    monkeypatch.setattr(module, "acompletion", acompletion)  # as a library of mocks may leave it
    assert isinstance(shared_ruler("openai/o3", {"api_key": "k"}, "Wit counts."), Ruler)
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(MissingExtraError, match=r"art.rewards.ruler.acompletion needs 'litellm'"):
        await acompletion(model="openai/o3", messages=[])
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing
