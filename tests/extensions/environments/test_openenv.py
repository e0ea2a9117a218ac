"""Environments of a real OpenEnv server through the library's own client (`make test` installs both)."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from art_extensions.testing import LlmServer
from openenv_server import PYTHON, openenv_server

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
MISSING = not PYTHON.exists() and not os.environ.get("ART_TEST_EVERYTHING")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING, reason="no .venv-verifiers: `make .venv-verifiers/.installed`"),
]


def reply(body: Mapping[str, Any]) -> str:
    """Guesses from 0 on: as text, as numbers after a word, or as objects after one that lacks a field."""
    turn = len(body["messages"]) // 2
    by_name = {
        "right": ["0", "1", "2", "3"],
        "wrong": ["no"] * 4,
        "numbers": ["zero", "0", "1", "2", "3"],
        "plans": ['{"second": "a"}', "[1]", '{"first": 1}', '{"first": 0, "second": "b"}', '{"first": 2}'],
    }
    return (by_name[body["model"]] * 8)[turn]


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, Any]]:
    variables = {
        **{"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")},
        **{"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests' / 'contracts'}", "HF_HUB_OFFLINE": "1"},
    }
    with LlmServer(reply) as endpoint, openenv_server() as worlds:
        done = subprocess.run(
            [
                *(str(PYTHON), "-W", "ignore", str(PROGRAMS / "openenv_rollouts.py")),
                *(endpoint.base_url, endpoint.key, worlds),
            ],
            env=variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    yield json.loads(done.stdout.splitlines()[-1])


def test_observations_are_turns_and_rewards_add_up(told: dict[str, Any]) -> None:
    guess = told["guess"]
    assert guess["said"][0] == "Guess a number from 0 to 9."
    assert guess["said"][1::2] == ["0", "1", "2", "3"][: len(guess["said"]) // 2]
    assert set(guess["said"][2::2]) <= {"Higher.", "Lower."}
    wrong = guess["metrics"]["turns"] - (guess["reward"] > 0)
    assert guess["reward"] == pytest.approx(-0.125 * wrong + (guess["reward"] > 0))
    assert guess["metrics"] == {"turns": len(guess["said"]) // 2, "truncated": 0, "invalid_actions": 0}


def test_a_rollout_ends_with_its_turns_or_as_the_reset_was_told(told: dict[str, Any]) -> None:
    assert told["turns"]["metrics"] == {"turns": 2, "truncated": 1, "invalid_actions": 0}
    assert told["reset"]["metrics"] == {"turns": 1, "truncated": 0, "invalid_actions": 0}


def test_a_reply_becomes_the_value_of_a_field(told: dict[str, Any]) -> None:
    number = told["number"]
    assert number["said"][0] == "board: Guess a number from 0 to 9.\nmoves: [1, 2]"
    assert number["said"][1] == "zero" and number["said"][2].startswith("Invalid action: this is no JSON")
    assert number["metrics"]["invalid_actions"] == 1 and number["metrics"]["turns"] >= 2
    assert told["shown"]["said"][0] == "Guess a number from 0 to 9."


def test_an_action_of_several_fields_is_an_object_that_the_server_checks(told: dict[str, Any]) -> None:
    plan = told["plan"]
    reasons = [text for text in plan["said"] if text.startswith("Invalid action:")]
    assert reasons == [
        "Invalid action: its fields are first (integer), second (string)",
        "Invalid action: reply with a JSON object of the fields first (integer), second (string)",
    ]
    assert plan["metrics"]["invalid_actions"] == 2 and plan["metrics"]["turns"] >= 3


def test_rollouts_wait_for_a_server_with_one_session(told: dict[str, Any]) -> None:
    assert len(told["crowd"]) == 5  # one was cancelled
    assert told["occupied"].startswith("FullServerError") and "max_concurrent_envs" in told["occupied"]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("fails", r"EnvironmentFailedError: environment 'openenv:http.*/fails': step failed: .*no board"),
        ("hangs", r"EnvironmentTimeoutError: .*step did not answer within 1 s"),
        ("huge", r"EnvironmentFailedError: .*300000 characters.*observation=FIELD: hint \(300000\)"),
        ("tools", r"ConfigurationError: .*its actions have no fields.*art mcp train"),
        ("other", r"ConfigurationError: .*/other/schema is no schema of OpenEnv"),
        ("nobody", r"ConfigurationError: .*no server of OpenEnv answers at http://127\.0\.0\.1:9/schema"),
        ("address", r"ConfigurationError: .*write the address.*openenv:http://HOST:PORT"),
        ("action", r"ConfigurationError: .*actions have no field 'message': text"),
        ("observation", r"ConfigurationError: .*observations have no field 'board': .*hint"),
        ("max_turns", r"ConfigurationError: .*max_turns=0"),
    ],
)
def test_what_fails_says_what_and_why(told: dict[str, Any], case: str, words: str) -> None:
    assert re.match(words, told[case]), told[case]
