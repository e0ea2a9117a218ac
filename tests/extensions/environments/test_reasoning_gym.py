"""Questions of reasoning-gym with examples before them. Without the library there is nothing to ask."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

import art
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError
from art.testing import LlmServer

MISSING = importlib.util.find_spec("reasoning_gym") is None and not os.environ.get("ART_TEST_EVERYTHING")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING, reason="no reasoning-gym: pip install -e '.[dev]'"),
]
SMALL = {"train": 20, "val": 10, "min_value": 1, "max_value": 30}


async def test_examples_stand_before_each_question_and_the_score_is_the_librarys() -> None:
    asked: list[Any] = []

    def answer(request: Any) -> str:
        asked.append(request["messages"] if isinstance(request, dict) else request.messages)
        return "1"

    environment = find_environment(
        "reasoning-gym:gcd", system_prompt="Short.", examples=[("of 4 and 6?", "2")], **SMALL
    )
    async with LlmServer(answer) as server:
        model = art.Model(
            name="m",
            project="p",
            inference_base_url=server.base_url,
            inference_api_key=server.key,
            inference_model_name="m",
        )
        played = [await environment.rollout(model, one) for one in environment.scenarios("val")]
    assert len(asked) == 10
    for messages in asked:
        assert [one["role"] for one in messages] == ["system", "user", "assistant", "user"]
        assert [one["content"] for one in messages[:3]] == ["Short.", "of 4 and 6?", "2"]
    assert {one.metrics["solved"] for one in played} == {0.0, 1.0}
    assert all((one.metrics["solved"] == 1) == (one.reward == 1) for one in played)


@pytest.mark.parametrize("pair", ["ab", ("a",), ("a", "b", "c"), ("a", 1)])
def test_an_example_is_a_pair_of_texts(pair: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"reasoning-gym:gcd: the example .* is no pair of texts"):
        find_environment("reasoning-gym:gcd", examples=[pair], **SMALL)
