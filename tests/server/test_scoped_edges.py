"""Corners of scoped rollouts: conversations of the same words, odd ids, keys in two headers."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from live import KEY, Live
from scripted_engine import Script, ScriptedEngine

import art
from art.errors import ConfigurationError
from art.rendering.library import LibraryRenderer
from art.trajectories import is_choice
from waiting import DEADLINE_S

ASK = [{"role": "user", "content": "hello there"}]


@pytest.fixture
def engine(renderer: LibraryRenderer) -> ScriptedEngine:
    """Every reply is the same."""
    return ScriptedEngine(lambda request: Script(ids=renderer.encode("the same<|im_end|>")))


@pytest.fixture
def model(live: Live) -> art.TrainableModel:
    known = art.TrainableModel(name="player", project="games", base_model="tiny")
    known.inference_base_url, known.inference_api_key = f"{live.url}/v1", KEY
    return known


@pytest.mark.slow
async def test_of_two_conversations_of_the_same_words_the_one_that_went_on_is_continued(
    live: Live, model: art.TrainableModel
) -> None:
    async with art.rollout(model) as r, openai.AsyncOpenAI(base_url=r.base_url, api_key=r.api_key) as asked:

        async def ask(messages: list[Any]) -> Any:
            reply = await asked.chat.completions.create(model="player", messages=messages)
            return reply.choices[0]

        first, second = await ask(ASK), await ask(ASK)
        third = await ask([*ASK, second.message, *ASK])
    names = [choice.model_extra["sample_id"] for choice in (first, second, third)]
    kept = await live.ledger.rollout(r.rollout_id)
    assert [record.parent_id for record in kept] == [None, None, names[1]]
    told = [
        [item.model_extra["sample_id"] for item in history.messages_and_choices if is_choice(item)]
        for history in (r.trajectory, *r.trajectory.additional_histories)
    ]
    assert told == [[names[0]], [names[1], names[2]]]


@pytest.mark.slow
async def test_an_id_that_is_lost_in_an_address_is_refused(live: Live, model: art.TrainableModel) -> None:
    """Clients take `.` and `..` out of an address, and with them the rollout's name."""
    async with httpx.AsyncClient(
        base_url=live.url, headers={"authorization": f"Bearer {KEY}"}, timeout=DEADLINE_S
    ) as http:
        for given in (".", "..", "....", "a/b", ""):
            body = {"project": "games", "name": "player", "rollout_id": given}
            refused = await http.post("/art/rollouts", json=body)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "rollout_id", given
            with pytest.raises(ConfigurationError, match=r"rollout_id='.*not only dots"):
                art.rollout(model, rollout_id=given)
        for given in (".a", "..-", "a..b"):
            async with art.rollout(model, rollout_id=given) as r:
                asked = {"model": "player", "messages": ASK}
                done = await http.post(f"{r.base_url}/chat/completions", json=asked)
                assert done.status_code == 200
            assert is_choice(r.trajectory.messages_and_choices[-1])


def test_settings_that_do_not_fit_are_named(live: Live, model: art.TrainableModel) -> None:
    for settings in (
        {"expires_s": -1},
        {"step": -1},
        {"aliases": [1]},
        {"aliases": 5},
        {"allow_base": "who"},
    ):
        (name,) = settings
        with pytest.raises(ConfigurationError, match=f"{name}="):
            art.rollout(model, **settings)


async def test_a_closed_rollout_is_closed_whatever_is_asked_for(
    live: Live, model: art.TrainableModel
) -> None:
    async with httpx.AsyncClient(
        base_url=live.url, headers={"authorization": f"Bearer {KEY}"}, timeout=DEADLINE_S
    ) as http:
        body = {"project": "games", "name": "player", "rollout_id": "mine", "aliases": ["gpt-4o"]}
        assert (await http.post("/art/rollouts", json=body)).status_code == 200
        other = await http.post("/art/rollouts", json={**body, "aliases": []})
        assert other.status_code == 409
        assert "'games/player', aliases=['gpt-4o']" in other.json()["error"]["message"]
        await http.post("/art/rollouts/mine/close")
        for asked in (body, {**body, "aliases": []}):
            assert (await http.post("/art/rollouts", json=asked)).status_code == 410


@pytest.mark.extension
async def test_either_header_may_have_the_key(live: Live, model: art.TrainableModel) -> None:
    """An environment with a token for Anthropic itself: its clients send both."""
    async with art.rollout(model) as r, httpx.AsyncClient(base_url=live.url, timeout=DEADLINE_S) as http:
        body = {"model": "player", "messages": ASK, "max_tokens": 8}
        for one, other, status in (
            ("sk-ant-oat", r.api_key, 200),
            (r.api_key, "sk-ant-api", 200),
            ("sk-ant-oat", "sk-ant-api", 401),
        ):
            headers = {"authorization": f"Bearer {one}", "x-api-key": other}
            assert (await http.post("/v1/messages", json=body, headers=headers)).status_code == status
    assert (
        sum(map(is_choice, r.trajectory.messages_and_choices)) + len(r.trajectory.additional_histories) == 2
    )


@pytest.mark.slow
async def test_each_prompt_of_a_request_is_a_conversation_of_its_own(
    live: Live, model: art.TrainableModel
) -> None:
    async with art.rollout(model) as r, openai.AsyncOpenAI(base_url=r.base_url, api_key=r.api_key) as asked:
        reply = await asked.completions.create(model="player", prompt=["hello", "there"], n=2)
    told = [
        (history.messages_and_choices[0]["content"], history.messages_and_choices[1].model_extra["sample_id"])
        for history in (r.trajectory, *r.trajectory.additional_histories)
    ]
    prompts = ["hello", "hello", "there", "there"]
    named = [choice.model_extra["sample_id"] for choice in reply.choices]
    assert sorted(told) == sorted(zip(prompts, named, strict=True))
