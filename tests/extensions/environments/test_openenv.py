"""Environments of a real OpenEnv server through the library's own client, of 0.3 and of 0.10."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from bench.faults.links import Relay

from art_extensions.testing import LlmServer, ToolCalls
from library_programs import needs, python_of, told_by
from openenv_server import openenv_server

PLACES = (".venv-verifiers", ".venv-openenv")
pytestmark = pytest.mark.slow


def reply(body: Mapping[str, Any]) -> Any:
    """Guesses from 0 on: as text, as numbers after a word, as objects after one that lacks a field, or by
    tools.
    """
    turn = sum(one["role"] == "assistant" for one in body["messages"])
    by_name: dict[str, list[Any]] = {
        "right": ["0", "1", "2", "3"],
        **dict.fromkeys(("wrong", "lost", "alone", "stalled"), ["no"] * 4),
        "numbers": ["zero", "0", "1", "2", "3"],
        "plans": ['{"second": "a"}', "[1]", '{"first": 1}', '{"first": 0, "second": "b"}', '{"first": 2}'],
        "callers": [
            '{"tool_name": "guess", "arguments": {"number": 1}}',
            '{"tool_name": "guess", "arguments": {"number": 3}}',
            '{"tool_name": "gues"}',
            '{"arguments": {}}',
        ],
        "guessers": [
            ToolCalls([("guess", {"number": 1}), ("guess", "[")]),
            ToolCalls([("gues", {}), ("guess", "[3]")]),
            ToolCalls([("guess", {"number": 3}), ("guess", {"number": 3})]),
        ],
        "actors": [
            "What is it?",
            ToolCalls([("act", {"second": "a"})]),
            ToolCalls([("guess", {"first": 1})]),
            ToolCalls([("act", {"first": 99})]),
            ToolCalls([("act", {"first": 99, "second": "b"})]),
        ],
    }
    return (by_name[body["model"]] * 8)[turn]


class BreakingWays:
    """Relays to a server, each named as a model is: one breaks when its model is asked for a second time."""

    def __init__(self, worlds: str) -> None:
        port = int(worlds.rpartition(":")[2])
        self.relays = {name: Relay(port) for name in ("lost", "alone", "stalled")}
        self._breaks: dict[str, Callable[[], None]] = {
            "lost": lambda: self.relays["lost"].lose_connections(2),  # the first one asked for the schema
            "alone": self.relays["alone"].lose_connections,
            "stalled": self._stall,
        }

    def _stall(self) -> None:
        self.relays["stalled"].stall()
        threading.Timer(6.0, self.relays["stalled"].resume).start()

    def answer(self, body: Mapping[str, Any]) -> Any:
        said = sum(one["role"] == "assistant" for one in body["messages"])
        if said == 1 and (breaks := self._breaks.pop(body["model"], None)):
            breaks()
        return reply(body)

    @property
    def addresses(self) -> list[str]:
        return [f"http://127.0.0.1:{one.port}" for one in self.relays.values()]


@pytest.fixture(scope="module", params=[pytest.param(place, marks=needs(place)) for place in PLACES])
def told(request: pytest.FixtureRequest) -> dict[str, Any]:
    place: str = request.param
    with openenv_server(python_of(place)) as worlds:
        ways = BreakingWays(worlds)
        with LlmServer(ways.answer) as endpoint:
            given = (endpoint.base_url, endpoint.key, worlds, *ways.addresses)
            told = told_by(place, "openenv_rollouts.py", *given)
    return {**told, "place": place, "asked": {one.body["model"]: one.body for one in endpoint.served}}


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


def test_a_killed_program_leaves_its_session_to_the_next(told: dict[str, Any]) -> None:
    assert told["killed"]["metrics"]["turns"] >= 1


def test_a_half_open_connection_costs_its_rollout_alone(told: dict[str, Any]) -> None:
    """The server is gone for one of three sessions, which nobody tells the client."""
    (reason,) = told["lost"]["failures"]
    assert re.search(
        r"EnvironmentFailedError.*: environment 'openenv:.*/guess': (step|reset) failed: ", reason
    )
    assert told["lost"]["rewards"] == [-0.5, -0.5]


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("alone", r"EnvironmentFailedError: .*step failed: (ConnectionClosed|the server closed the session)"),
        ("stalled", r"EnvironmentTimeoutError: .*step did not answer within 4 s"),
    ],
)
def test_the_only_session_is_free_again_after_a_half_open_connection(
    told: dict[str, Any], way: str, words: str
) -> None:
    """Its packets are answered by nobody who knows of it, or not at all for some seconds."""
    assert re.match(words, told[way]["failed"]), told[way]["failed"]
    assert told[way]["next"]["reward"] == -0.5


def test_a_reset_may_tell_other_fields_than_a_step(told: dict[str, Any]) -> None:
    said = told["opening"]["said"]
    assert said[0] == "board: Guess a number from 0 to 9.\nmoves: [1, 2]"
    assert set(said[2::2]) <= {"Higher.", "Lower."}


def test_a_reply_may_call_a_tool(told: dict[str, Any]) -> None:
    said = told["calls"]["said"]
    assert said[0] == ("ready" if told["place"] == ".venv-openenv" else ""), "0.3 sends no metadata"
    assert "Higher." in said[2] and "Right." in said[4] and "Unknown tool: 'gues'" in said[6]
    assert told["calls"]["metrics"] == {"turns": 4, "truncated": 1, "invalid_actions": 1}


def test_the_tools_of_an_environment_are_called_as_tools(told: dict[str, Any]) -> None:
    (tool,) = told["asked"]["guessers"]["tools"]
    assert tool["function"]["name"] == "guess" and tool["function"]["description"] == "Guess the number 3."
    assert tool["function"]["parameters"]["properties"] == {"number": {"type": "integer"}}
    results = [text for text in told["offered"]["said"][1:] if text]
    assert results[0] == "Higher." and results[2] == "Error: Unknown tool: 'gues'"
    assert results[1].startswith("Invalid action: the arguments of guess are no JSON (")
    assert results[3] == "Invalid action: the arguments of guess are no JSON object"
    assert results[4:] == ["Right.", "Right."]
    assert told["offered"]["metrics"] == {"turns": 3, "truncated": 1, "invalid_actions": 2}


def test_calls_earn_what_the_environment_gives_until_it_ends(told: dict[str, Any]) -> None:
    rewarded = told["rewarded"]
    assert rewarded["reward"] == pytest.approx(-0.25 + 1) and rewarded["metrics"]["truncated"] == 0
    assert rewarded["said"][-1] == "Invalid action: the episode has ended"
    assert told["silent"]["metrics"] == {"turns": 1, "truncated": 0, "invalid_actions": 0}


def test_each_reply_earns_the_reward_of_its_steps(told: dict[str, Any]) -> None:
    assert told["steps"] == {"reward": -0.5, "turns": {f"turn {number}": -0.125 for number in range(1, 5)}}
    calls = {"turn 1": -0.125, "turn 2": -0.125, "turn 3": 1.0}
    assert told["calls_earn"] == {"reward": sum(calls.values()), "turns": calls}


def test_the_action_of_any_environment_can_be_a_tool(told: dict[str, Any]) -> None:
    (tool,) = told["asked"]["actors"]["tools"]
    assert tool["function"]["name"] == "act"
    assert {*tool["function"]["parameters"]["properties"]} == {"first", "second"}
    assert tool["function"]["parameters"]["required"] == ["first"]
    acts = told["acts"]
    reasons = [text for text in acts["said"] if text and text.startswith("Invalid action:")]
    assert reasons == [
        "Invalid action: call the tool act",
        "Invalid action: its fields are first (integer), second (string)",
        "Invalid action: there is no tool guess: the tool is act",
    ]
    assert acts["said"][-1] == "board: Lower.\nmoves: [1, 2]"
    assert acts["metrics"] == {"turns": 5, "truncated": 1, "invalid_actions": 3}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("fails", r"EnvironmentFailedError: environment 'openenv:http.*/fails': step failed: .*no board"),
        ("drops", r"EnvironmentFailedError: .*step failed: (the server closed the session|ConnectionClosed)"),
        ("hangs", r"EnvironmentTimeoutError: .*step did not answer within 1 s"),
        ("huge", r"EnvironmentFailedError: .*300000 characters.*observation=FIELD: hint \(300000\)"),
        ("tools", r"EnvironmentFailedError: .*/tools': the list of tools failed: .*text"),
        ("no_tools", r"ConfigurationError: .*its actions have no fields.*leave tools=False out"),
        ("both", r"ConfigurationError: .*leave action='first' out"),
        ("other", r"ConfigurationError: .*/other/schema is no schema of OpenEnv"),
        ("nobody", r"ConfigurationError: .*no server of OpenEnv answers at http://127\.0\.0\.1:9/schema"),
        ("address", r"ConfigurationError: .*write the address.*openenv:http://HOST:PORT"),
        ("action", r"ConfigurationError: .*actions have no field 'message': text"),
        ("observation", r"ConfigurationError: .*observations have no field 'board': .*hint"),
        ("max_turns", r"ConfigurationError: .*max_turns=0"),
        ("nan", r"EnvironmentFailedError: .*/faulty': its reward is nan, no number"),
        ("word", r"EnvironmentFailedError: .*/faulty': its reward is 'great', no number"),
        ("floods", r"EnvironmentFailedError: .*/faulty': step failed: .*(1009|too big)"),
        ("prompt", r"EnvironmentFailedError: .*observation has 10000000 characters, more than 200000"),
        ("dies", r"EnvironmentFailedError: .*/dies': step failed: ConnectionClosed"),
    ],
)
def test_what_fails_says_what_and_why(told: dict[str, Any], case: str, words: str) -> None:
    assert re.match(words, told[case]), told[case]
