"""Environments of SkyRL-Gym with the real library, which says what the same replies are worth."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars
import pytest

import art
from art.errors import ConfigurationError
from art_extensions.environments.dataset_rows import read_rows
from art_extensions.testing import LlmServer
from library_programs import needs, told_by

PROGRAM = (".venv-environments", "skyrl_rollouts.py")
apart = needs(PROGRAM[0])


def reply(body: Mapping[str, Any]) -> str:
    """Answers questions with odd numbers, and those with even ones after a wrong answer in form or none."""
    first = next(str(one["content"]) for one in body["messages"] if one["role"] == "user")
    turn = sum(one["role"] == "assistant" for one in body["messages"])
    (number,) = re.findall(r"\d+", first)[:1]
    if first.startswith("Pets"):
        query = f"select name from pet where age > {number}" if number != "9" else "select 1"
        return f"<think>so</think><{(word := ('sql', 'solution')[turn])}>{query}</{word}>"
    wrong = [f"{number} apples", "#### -1", "#### -2"] if int(number) % 2 == 0 else []
    return [*wrong, f"Answer: {number}\n#### {number}"][min(turn, len(wrong))]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with LlmServer(reply) as server:
        return told_by(*PROGRAM, str(tmp_path_factory.mktemp("skyrl")), server.base_url, server.key)


@apart
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gsm8k", "turns", "cut", "aime", "sql", "own"])
def test_replies_are_worth_what_the_library_says(told: dict[str, Any], name: str) -> None:
    for one in told[name]:
        assert one["reward"] == pytest.approx(sum(one["library"]["rewards"]))
        assert one["said"] == one["library"]["said"] and one["library"]["done"]
        assert one["metrics"]["turns"] == len(one["library"]["rewards"])
        assert one["metrics"]["truncated"] == 0
    assert len({one["reward"] for one in told[name]}) > 1, "good replies and bad ones"


@apart
@pytest.mark.slow
def test_the_number_of_turns_is_the_rows_or_the_options(told: dict[str, Any]) -> None:
    assert max(one["metrics"]["turns"] for one in told["turns"]) == 4
    assert max(one["metrics"]["turns"] for one in told["cut"]) == 2
    assert all(one["metrics"]["steps"] == one["metrics"]["turns"] for one in told["turns"])


@apart
@pytest.mark.slow
def test_an_environment_opens_the_conversation_and_does_not_rewrite_replies(told: dict[str, Any]) -> None:
    for one in told["own"]:
        assert one["said"][0] == "Talk." and one["said"][1].endswith("+ 0? 2 turns.")
        rewritten = sum(" " in text for text in one["said"][2::2])
        assert one["metrics"] == {"turns": 2, "truncated": 0, "rewritten": rewritten, "steps": 2}
    assert told["closed"] == len(told["own"]) + 2, "two rollouts failed"


@apart
@pytest.mark.slow
def test_rows_of_the_environment_are_in_one_split_once(told: dict[str, Any]) -> None:
    train, val = told["splits"]["train"], told["splits"]["val"]
    assert {*val} == {"What is 0 + 0?", "What is 1 + 0?"}
    assert sorted([*train, *val]) == [f"What is {number} + 0?" for number in range(8)]
    assert len(told["gsm8k"]) == 8, "a part is kept for val"


@apart
@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unknown", r"ConfigurationError: .*no environment 'gsm8': did you mean 'gsm8k'.*known: aime"),
        ("no data", r"ConfigurationError: .*give data=FILE"),
        ("no rows", r"ConfigurationError: .*1 rows, 0 of this environment"),
        ("no file", r"ConfigurationError: .*missing\.jsonl is no file of rows"),
        ("one row", r"ConfigurationError: .*no row is left for 'train'"),
        ("max_turns", r"ConfigurationError: .*max_turns=0"),
        ("raises", r"EnvironmentFailedError: environment 'skyrl-gym:lengths': step failed: KeyError"),
        ("text", r"EnvironmentFailedError: .*step gave .*'much'"),
        ("config", r"EnvironmentFailedError: .*making it failed: .*scale"),
    ],
)
def test_what_is_wrong_is_said(told: dict[str, Any], case: str, words: str) -> None:
    assert re.match(words, told[case], re.DOTALL), told[case]


@apart
@pytest.mark.slow
async def test_each_turn_earns_the_reward_of_its_step(tmp_path: Path) -> None:
    model = art.TrainableModel(name="turns", project="skyrl", base_model="art/nano-games")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        url, key = model.inference_base_url, model.inference_api_key
        assert url is not None and key is not None
        found = await asyncio.to_thread(told_by, *PROGRAM, "turns", url, key, model.get_inference_name())
    for one in found["rewarded"]:
        assert None not in one["samples"] and len(one["samples"]) == 3
        assert [*one["turn_rewards"]] == one["samples"]
        assert [*one["turn_rewards"].values()] == pytest.approx(one["library"]["rewards"])
        assert one["reward"] == pytest.approx(sum(one["library"]["rewards"])) and one["reward"] > 0
    assert all(one["turn_rewards"] == {} for one in found["plain"])


def test_a_file_of_rows_is_lines_a_list_or_a_table(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"{n}?"}], "extra": {"n": n / 3}} for n in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    polars.DataFrame(rows).write_parquet(tmp_path / "rows.parquet")
    for name in ("rows.jsonl", "rows.json", "rows.parquet"):
        assert read_rows("it", tmp_path / name) == rows
    (tmp_path / "broken.parquet").write_text("no table")
    with pytest.raises(ConfigurationError, match=r"it: .*broken\.parquet is no file of rows"):
        read_rows("it", str(tmp_path / "broken.parquet"))
