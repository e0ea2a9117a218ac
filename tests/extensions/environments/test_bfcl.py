"""Questions of BFCL with the real library, in an environment of its own (`make test-all` makes it)."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

import pytest

from art_extensions.testing import LlmServer, ToolCalls
from library_programs import ROOT, needs, told_by

PLACE = ".venv-bfcl"
pytestmark = [
    pytest.mark.slow,
    needs(PLACE),
]
CHECKED = ("simple_python", "multiple", "parallel", "parallel_multiple")
"""Categories whose right calls are in the library's files."""
TURNS = "multi_turn_base"
FORBIDDEN = "__import__('os').getcwd"
HUGE = {
    "power": ("power", '{"base": 10, "exponent": 10000000000}'),
    "digits": ("square_root", '{"number": 2, "precision": 1000000000000}'),
    "infinite": ("round_number", '{"number": 7, "decimal_places": -1e999}'),
    "wide": ("power", '{"base": 10, "exponent": 9000}'),
    "digit": ("add", '{"a": 1, "b": %s}' % ("9" * 5000)),
    "deep": ("mean", '{"numbers": %s}' % ("[" * 100_000 + "]" * 100_000)),
}
"""Calls of BFCL's calculator that never end, or whose results or arguments are very long."""


def read_rows(file: str) -> dict[str, Any]:
    (data,) = (ROOT / PLACE / "lib").glob("python*/site-packages/bfcl_eval/data")
    rows = [json.loads(line) for line in (data / file).read_text().splitlines()]
    return {row["id"]: row for row in rows}


def right_calls(answers: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The calls of BFCL's file of answers, which has a list of the values that each argument may have."""
    return [(name.replace(".", "_"), first_values(given)) for call in answers for name, given in call.items()]


def first_values(given: Mapping[str, list[Any]]) -> dict[str, Any]:
    """The first value of each argument; "" stands for an argument that may be left out."""
    named = {key: [one for one in values if one != ""] for key, values in given.items()}
    return {key: plain(values[0]) for key, values in named.items() if values}


def plain(value: Any) -> Any:
    """A value without the alternatives inside of it."""
    if isinstance(value, dict):
        return first_values(value)
    return [plain(one) for one in value] if isinstance(value, list) else value


def parse_call(text: str, tools: list[Any]) -> tuple[str, dict[str, Any]]:
    """A call of BFCL's answers, which are Python. Arguments without a name are in the tool's order."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    name = call.func.id
    (tool,) = (one["function"] for one in tools if one["function"]["name"] == name)
    given = dict(zip(tool["parameters"]["properties"], map(ast.literal_eval, call.args), strict=False))
    return name, {**given, **{str(one.arg): ast.literal_eval(one.value) for one in call.keywords}}


class Script:
    """The model: it knows the right calls, and does with them what its name says."""

    def __init__(self) -> None:
        self.right = {
            (category, row["question"][0][-1]["content"]): right_calls(
                read_rows(f"possible_answer/BFCL_v4_{category}.json")[key]["ground_truth"]
            )
            for category in CHECKED
            for key, row in read_rows(f"BFCL_v4_{category}.json").items()
        }
        truths = read_rows(f"possible_answer/BFCL_v4_{TURNS}.json")
        self.turns = {
            row["question"][0][0]["content"]: truths[key]["ground_truth"]
            for key, row in read_rows(f"BFCL_v4_{TURNS}.json").items()
        }

    def play_turn(self, kind: str, body: Mapping[str, Any]) -> Any:
        """All calls of the newest user message in one reply, then a text."""
        if kind == "endless":
            return ToolCalls([("no_such_function", "{}")])
        if kind == "none" or body["messages"][-1]["role"] == "tool":
            return "Done."
        asked = [one["content"] for one in body["messages"] if one["role"] == "user"]
        calls = [parse_call(one, body["tools"]) for one in self.turns[asked[0]][len(asked) - 1]]
        if kind in HUGE:
            return ToolCalls([HUGE[kind]])
        if kind in ("name", "forbidden"):
            calls = [(FORBIDDEN if kind == "forbidden" else f"{name}_2", {}) for name, _ in calls]
        return ToolCalls([(name, "[" if kind == "broken" else json.dumps(given)) for name, given in calls])

    def reply(self, body: Mapping[str, Any]) -> Any:
        category, kind = body["model"].split("/")
        if category == TURNS:
            return self.play_turn(kind, body)
        first = body["tools"][0]["function"]["name"]
        calls = self.right.get((category, body["messages"][-1]["content"]), [(first, {})])
        if kind == "none":
            return ""
        if kind == "prose":
            return "I would call " + ", ".join(name for name, _ in calls)
        if kind == "broken":
            return ToolCalls([(name, '{"unfinished": ') for name, _ in calls])
        if kind == "twice":
            calls = [*calls, calls[-1]]
        if kind == "name":
            calls = [(f"{name}_2", given) for name, given in calls]
        if kind == "value":
            calls = [(name, dict.fromkeys(given, "no such value 17")) for name, given in calls]
        return ToolCalls([(name, json.dumps(given)) for name, given in calls])


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    with LlmServer(Script().reply) as server:
        told = told_by(PLACE, "bfcl_questions.py", server.base_url, server.key, timeout_s=580)
        told["request"] = next(one for one in server.requests if one["model"] == "simple_python/right")
    return told


@pytest.mark.parametrize("category", CHECKED)
def test_the_right_calls_earn_one_and_others_nothing(found: dict[str, Any], category: str) -> None:
    for one in found[f"{category}/right"]:
        assert one["reward"] == one["metrics"]["right"] == 1, one["metadata"]["reason"]
        assert one["metadata"]["reason"] == "" and one["metadata"]["category"] == category
        assert one["metrics"]["calls"] == len(one["messages"][-1]["tool_calls"]) >= 1
    for wrong in ("value", "name", "twice", "none", "prose", "broken"):
        for one in found[f"{category}/{wrong}"]:
            assert one["reward"] == 0 and one["metadata"]["reason"], wrong


def test_rewards_are_what_the_package_s_own_evaluation_gives(found: dict[str, Any]) -> None:
    """`bfcl evaluate` reads the same replies from files, without ART."""
    for name, right in found["evaluated"].items():
        rewards = {one["metadata"]["scenario_id"].rpartition("/")[2]: one["reward"] for one in found[name]}
        assert rewards == {question: float(one) for question, one in right.items()}, name
    verdicts = [one for right in found["evaluated"].values() for one in right.values()]
    assert {True, False} == set(verdicts) and len(verdicts) == 4 * (7 + 3)


def test_the_reason_is_that_of_the_checker(found: dict[str, Any]) -> None:
    def reasons(reply: str) -> set[str]:
        return {one["metadata"]["error_type"] for one in found[f"simple_python/{reply}"]}

    assert reasons("twice") == {"simple_function_checker:wrong_count"}
    assert reasons("name") == {"simple_function_checker:wrong_func_name"}
    assert reasons("broken") == reasons("prose") == {"ast_decoder:decoder_failed"}
    assert "Wrong number of functions." in found["simple_python/twice"][0]["metadata"]["show"]


def test_a_question_without_a_fitting_function_wants_no_call(found: dict[str, Any]) -> None:
    for reply, calls in {"none": False, "prose": False, "right": True}.items():
        assert {one["reward"] for one in found[f"irrelevance/{reply}"]} == {float(not calls)}
        assert {one["reward"] for one in found[f"live_relevance/{reply}"]} == {float(calls)}


def test_a_conversation_of_right_calls_earns_one_each_time(found: dict[str, Any]) -> None:
    for one in [*found[f"{TURNS}/right"], *found[f"{TURNS}/right again"]]:
        assert one["reward"] == 1, one["metadata"]["reason"]
        replies = [message for message in one["messages"] if message["role"] == "assistant"]
        assert one["metrics"]["turns"] == len(replies) > 1
        asked = sum(len(message.get("tool_calls") or ()) for message in replies)
        told = [message["content"] for message in one["messages"] if message["role"] == "tool"]
        assert asked == len(told) == one["metrics"]["calls"]
        assert not any("is not defined" in result for result in told)
    assert found["worlds"] == []


def test_conversations_of_other_calls_earn_nothing(found: dict[str, Any]) -> None:
    reasons = {
        reply: {one["metadata"]["error_type"] for one in found[f"{TURNS}/{reply}"] if one["reward"] == 0}
        for reply in ("none", "name", "broken", "forbidden", "endless")
    }
    empty = {"multi_turn:empty_turn_model_response"}
    assert reasons["none"] == reasons["name"] == reasons["broken"] == reasons["forbidden"] == empty
    assert reasons["endless"] == {"multi_turn:force_terminated"}
    assert {one["metrics"]["turns"] for one in found[f"{TURNS}/endless"]} == {21}
    assert all(len(found[f"{TURNS}/{reply}"]) == 3 for reply in reasons)


def test_a_name_that_is_no_function_is_not_evaluated(found: dict[str, Any]) -> None:
    for one in found[f"{TURNS}/forbidden"]:
        told = {message["content"] for message in one["messages"] if message["role"] == "tool"}
        assert told == {f"Error during execution: name {FORBIDDEN!r} is not defined"}


@pytest.mark.parametrize("kind", [*HUGE])
def test_a_call_that_would_not_end_is_an_error_that_the_model_sees(found: dict[str, Any], kind: str) -> None:
    one = found[f"{TURNS}/{kind}"][0]
    assert one["reward"] == 0, one
    said = {message["content"] for message in one["messages"] if message["role"] == "tool"}
    assert len(said) == 1 and all(result.startswith("Error during execution: ") for result in said), said
    assert ("above 10000" in said.pop()) == (kind in ("power", "digits", "infinite"))


def test_the_functions_are_openai_tools(found: dict[str, Any]) -> None:
    (tool,) = found["request"]["tools"]
    assert tool["type"] == "function" and tool["function"]["parameters"]["type"] == "object"
    assert "." not in tool["function"]["name"]
    assert found["request"]["max_tokens"] == 64
    rollouts = found["simple_python/right"]  # the first request is that of any of them
    assert any(rollout["tools"] == [tool] for rollout in rollouts)
    assert all(rollout["messages"][0]["role"] == "user" for rollout in rollouts)
    # The checker of Java reads texts, and so the model is asked for texts.
    java = found["simple_java/right"][0]["tools"][0]["function"]
    assert {one["type"] for one in java["parameters"]["properties"].values()} == {"string"}
    assert java["description"].endswith("Java 8 SDK syntax.")


def test_no_question_is_in_both_splits_of_a_collection(found: dict[str, Any]) -> None:
    train, val = set(found["live"]["train"]), set(found["live"]["val"])
    assert not train & val and len(val) == 50
    live = ("simple", "multiple", "parallel", "parallel_multiple", "irrelevance", "relevance")
    assert len(train) + 50 == sum(len(read_rows(f"BFCL_v4_live_{one}.json")) for one in live)


def test_names_that_bfcl_does_not_have_are_refused(found: dict[str, Any]) -> None:
    assert "'simple'" in found["simple"] and "simple_python" in found["simple"]
    assert "'multi_turn_miss_func'" in found["turns"] and TURNS in found["turns"]
    assert "16 questions" in found["used up"] and "val=3" in found["used up"]


def test_the_import_leaves_nothing_beside_the_package(found: dict[str, Any]) -> None:
    assert found["beside"] == []
