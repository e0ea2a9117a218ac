"""Run with pytest: the environment alone, with a model that always says yes."""

from __future__ import annotations

import asyncio

import art
from art.testing import LlmServer
from parity import EvenNumbers


def test_no_scenario_is_in_both_splits() -> None:
    train, val = ({one.id for one in EvenNumbers().scenarios(split)} for split in ("train", "val"))
    assert train and val and not train & val


def test_the_reward_is_one_for_the_right_answer_alone() -> None:
    with LlmServer(lambda request: "yes") as server:
        model = art.Model(
            name="yes", project="test", inference_base_url=server.base_url, inference_api_key=server.key
        )
        for scenario in EvenNumbers().scenarios("val")[:10]:
            one = asyncio.run(EvenNumbers().rollout(model, scenario))
            assert one.reward == (0.5 if scenario.data["number"] % 2 else 1.0)
