"""What a generator writes for a task: asked in portions, kept only where it differs, split."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from art.errors import ConfigurationError, LlmAnswerError
from art.rewards.llm import Channel, resolve_llm
from art_extensions.scenarios.autorl import generate_inputs, write_rubric, write_system_prompt
from art_extensions.scenarios.autorl.preparation import are_alike, own_inputs
from art_extensions.testing import LlmServer, Mischief, ScriptedGenerator

TASK = "Translate a sentence into French."
TOPICS = (
    "cats trains bread rain maps songs chess wool mines ships bees salt ice fire sand milk glass gold".split()
)
SENTENCES = [f"The {a} remind me of {b}." for a in TOPICS for b in TOPICS if a < b]


def channel(server: LlmServer) -> Channel:
    llm = resolve_llm("writer", base_url=server.base_url, api_key=server.key)
    return Channel(llm, first_wait=0.01)


async def test_inputs_are_different_and_apart() -> None:
    twice = [text for sentence in SENTENCES for text in (sentence, sentence.upper() + "!")]
    async with LlmServer(ScriptedGenerator(inputs=twice)) as server:
        inputs = await generate_inputs(TASK, generator=channel(server), num_train=15, num_test=5)
    assert (len(inputs.train), len(inputs.test)) == (15, 5)
    every = [*inputs.train, *inputs.test]
    assert not [(a, b) for a in every for b in every if a < b and are_alike(a, b, 0.9)]
    assert inputs.rejected["near_duplicate"] >= 20


async def test_each_portion_asks_for_something_else_and_names_what_is_there() -> None:
    async with LlmServer(ScriptedGenerator(inputs=SENTENCES)) as server:
        inputs = await generate_inputs(
            TASK, generator=channel(server), num_train=20, num_test=5, similarity=1.0
        )
    assert len(inputs.train) == 20
    asked = [body["messages"][1]["content"] for body in server.requests]
    assert len(asked) == len(set(asked)) == 3
    assert TASK in asked[0] and SENTENCES[0] not in asked[0] and SENTENCES[0] in asked[1]
    sizes = [
        body["response_format"]["json_schema"]["schema"]["properties"]["inputs"]["maxItems"]
        for body in server.requests
    ]
    assert sizes == [10, 10, 5]


async def test_the_split_depends_on_the_seed_alone() -> None:
    async with LlmServer(lambda body: {"inputs": SENTENCES[:10]}) as server:
        splits = [
            await generate_inputs(
                TASK, generator=channel(server), num_train=7, num_test=3, seed=seed, similarity=1.0
            )
            for seed in (0, 0, 1)
        ]
    assert splits[0] == splits[1] != splits[2]
    assert set(splits[0].train + splits[0].test) == set(SENTENCES[:10])


async def test_fewer_inputs_are_said_and_too_few_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with LlmServer(ScriptedGenerator(inputs=SENTENCES[:6])) as server:
        with caplog.at_level(logging.WARNING):
            few = await generate_inputs(
                TASK, generator=channel(server), num_train=9, num_test=2, similarity=1.0
            )
        assert (len(few.train), len(few.test)) == (4, 2) and "6 of 11 inputs" in caplog.text
        with pytest.raises(LlmAnswerError, match="wrote 6 different inputs, 7 are needed"):
            await generate_inputs(TASK, generator=channel(server), num_train=9, num_test=6, similarity=1.0)


async def test_trouble_with_the_generator_is_overcome() -> None:
    trouble = Mischief(fault=0.1, truncated=0.1, prose=0.3, refusal=0.1, seed=4)
    async with LlmServer(ScriptedGenerator(inputs=SENTENCES), mischief=trouble, formats=("text",)) as server:
        inputs = await generate_inputs(
            TASK, generator=channel(server), num_train=30, num_test=5, similarity=1.0
        )
    assert (len(inputs.train), len(inputs.test)) == (30, 5)
    assert {one.trouble for one in server.served} - {None}


async def test_nonsense_is_asked_for_again_with_the_reason() -> None:
    def answer(body: Mapping[str, Any]) -> Any:
        return {"inputs": SENTENCES[:3]} if len(body["messages"]) > 2 else {"inputs": [{"text": "x"}]}

    async with LlmServer(answer) as server:
        inputs = await generate_inputs(TASK, generator=channel(server), num_train=2, num_test=1)
    assert len(inputs.train) == 2
    assert "must be a list of texts" in server.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("one", "two", "similarity", "same"),
    [
        ("Translate: I like tea", "translate i like TEA!", 1.0, True),
        ("Translate 'tea' please", "Please translate 'tea'", 0.9, True),
        ("Translate 'tea' please", "Please translate 'tea'", 1.0, False),
        ("What is 17 + 25?", "What is 17 + 26?", 0.9, False),
        ("The cat sleeps", "A treaty of two seas", 0.9, False),
        ("?", "!", 0.9, False),
    ],
)
def test_when_two_inputs_are_one(one: str, two: str, similarity: float, same: bool) -> None:
    assert are_alike(one, two, similarity) is same


def test_inputs_of_ones_own_are_each_taken_once() -> None:
    inputs = own_inputs(["a b", "A, b", "c d", " ", "e f"], num_test=1, similarity=1.0, seed=0)
    assert len(inputs.train) == 2 and dict(inputs.rejected) == {"near_duplicate": 1, "empty": 1}
    with pytest.raises(ConfigurationError, match="1 different ones, 2 are needed"):
        own_inputs(["a", "A"], num_test=1, similarity=1.0, seed=0)


async def test_a_system_prompt_and_a_rubric_are_written_from_the_task_and_examples() -> None:
    written = ScriptedGenerator(
        system_prompt="  Translate.  ", rubric=lambda body, count: ["- right", "- short"]
    )
    async with LlmServer(written) as server:
        shared: dict[str, Any] = {"generator": channel(server), "examples": SENTENCES}
        assert await write_system_prompt(TASK, **shared) == "Translate."
        assert await write_rubric(TASK, **shared) == "- right\n- short"
    for body in server.requests:
        text = json.dumps(body["messages"])
        assert TASK in text and SENTENCES[0] in text and SENTENCES[9] not in text


async def test_an_empty_text_is_none() -> None:
    async with LlmServer(ScriptedGenerator(rubric=" ")) as server:
        with pytest.raises(LlmAnswerError, match='"rubric" must be a text'):
            await write_rubric(TASK, generator=channel(server))
