"""Corners of scoped rollouts: conversations of the same words, odd ids, keys in two headers."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from live import KEY, Live
from scripted_engine import Script, ScriptedEngine

import art
from art.rendering.library import LibraryRenderer
from art.trajectories import is_choice

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
