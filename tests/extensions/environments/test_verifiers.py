"""Environments of verifiers with the real library, in an environment that `make test-all` makes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import art
from art.client.sft.sft_rows import sft_trajectories
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError
from art_extensions.environments.verifiers import metric_name, row_id, sft_rows
from art_extensions.testing import LlmServer
from library_programs import needs, told_by

PLACE = ".venv-verifiers"
apart = needs(PLACE)
KINDS = ("single", "multi", "tasks", "tools", "stateful", "several")


def run(*words: str) -> dict[str, Any]:
    return told_by(PLACE, "verifiers_rollouts.py", *words, timeout_s=400)


def reply(body: Mapping[str, Any]) -> str:
    if body["model"] == "silent":
        return ""
    word = re.match(r"Say (\w+)", str(body["messages"][-1]["content"]))
    return word[1] if word else "4"


@pytest.fixture(scope="module")
def scripted() -> Iterator[dict[str, Any]]:
    with LlmServer(reply) as server:
        told = run("scripted", server.base_url, server.key)
        told["last request"] = dict(server.served[-1].body)
        yield told


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("hub")
    with art.LocalBackend(path=folder / "art") as backend:
        model = art.TrainableModel(name="address", project="hub", base_model="art/nano-tools")
        art.run(model.register(backend))
        return run(
            "trained", str(model.inference_base_url), str(model.inference_api_key), str(folder / "results")
        )


@apart
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_environment_keeps_every_sample_and_trains_it(
    trained: dict[str, Any], kind: str
) -> None:
    found = trained[kind]
    for rollout, samples, ledger in zip(found["rollouts"], found["samples"], found["ledger"], strict=True):
        turns = 1 if kind == "tasks" else rollout["metrics"]["num_turns"]  # a taskset's are not counted
        assert samples == ledger and len(samples) == turns >= 1
        assert rollout["metrics"]["forks"] == 0
    count = len(found["rollouts"])
    assert found["policy"] == [[0, 0]] * count and count == (12 if kind == "several" else 6)
    sheet = found["sheet"]
    assert sheet["data/sheet/started_rollouts"] == sheet["data/sheet/trained_rollouts"] == count
    assert found["sheet"]["data/sheet/started_tokens"] == found["sheet"]["data/sheet/trained_tokens"]


@apart
@pytest.mark.slow
def test_the_rubric_is_the_reward_and_its_functions_are_metrics(trained: dict[str, Any]) -> None:
    for rollout in trained["stateful"]["rollouts"]:
        parts = rollout["metrics"]
        assert rollout["reward"] == parts["found"] + 0.25 * parts["read_first"]
        calls = sum(len(one.get("tool_calls") or ()) for one in rollout["messages"])
        assert parts["total_tool_calls"] == calls
        assert f"reward: {rollout['reward']:g}" in rollout["show"]
    assert any('search({"keyword"' in one["show"] for one in trained["stateful"]["rollouts"])
    tool_turns = [one["messages"] for one in trained["tools"]["rollouts"]]
    assert any(message["role"] == "tool" for messages in tool_turns for message in messages)
    assert max(one["metrics"]["num_turns"] for one in trained["multi"]["rollouts"]) == 5
    assert {one["metrics"]["num_turns"] for one in trained["single"]["rollouts"]} == {1}


@apart
@pytest.mark.slow
def test_each_environment_of_a_group_scores_its_own_rows(trained: dict[str, Any]) -> None:
    seen = set()
    for one in trained["several"]["rollouts"]:
        seen.add(words := str(one["messages"][0]["content"]).startswith("Say"))
        assert ("exact" in one["metrics"]) == words and ("total_tool_calls" in one["metrics"]) != words
    assert seen == {True, False}


@apart
@pytest.mark.slow
def test_the_rewards_of_steps_are_those_of_the_turns(trained: dict[str, Any]) -> None:
    told = trained["stepped"]
    assert told["step"] == 1 and told["trained"] > 0
    for one in told["rollouts"]:
        replies = [message["content"] for message in one["messages"] if message["role"] == "assistant"]
        rewarded = [one["turns"].get(sample) for sample in one["samples"]]
        assert len(replies) == len(rewarded) == one["metrics"]["num_turns"]
        # The environment answers every reply but the last of a rollout that came to its most turns.
        known = rewarded if one["stop"] != "max_turns_reached" else rewarded[:-1]
        assert rewarded[len(known) :] in ([], [None]) and None not in known
        worth = [sum(map(ord, reply.strip())) % 10 / 10 for reply in replies]
        assert known == worth[: len(known)]
        assert one["reward"] == pytest.approx(one["metrics"]["right"] + sum(known))
    assert told["plain"] == {}
    assert len(told["warned"]) == 1 and "no step of a rollout has a reward" in told["warned"][0]


@apart
@pytest.mark.slow
def test_a_dataset_that_is_given_twice_is_split(trained: dict[str, Any]) -> None:
    assert trained["tasks"]["rows"] == [48, 12]


@apart
@pytest.mark.slow
def test_a_prompt_that_is_too_long_ends_the_rollout(trained: dict[str, Any]) -> None:
    told = trained["single"]["too long"]
    assert told.startswith("EnvironmentFailedError") and "prompt_too_long" in told, told
    longer = trained["single"]["longer"]
    assert longer["stop"] == "prompt_too_long" and longer["metrics"]["truncated"] == 1
    assert 1 < longer["samples"] == longer["metrics"]["num_turns"] < 20
    assert longer["reward"] in (0.0, 1.0)


@apart
@pytest.mark.slow
def test_a_checkpoint_is_evaluated_on_the_held_out_rows(trained: dict[str, Any]) -> None:
    assert trained["single"]["evaluated"] == [[4, 0]] * 3
    assert set(trained["single"]["pass_at"]) == {"1", "2", "4"}
    assert trained["single"]["steps"] == [0]  # the leased step answers, although a newer one is served


@apart
@pytest.mark.slow
def test_results_of_verifiers_are_rows_that_train(trained: dict[str, Any]) -> None:
    told = trained["sft"]
    assert len(told["kept"]) == told["good"] >= 1 and told["same"] and told["none"] == []
    for row, trajectory in zip(told["kept"], sft_trajectories(told["kept"]), strict=True):
        assert [tool["function"]["name"] for tool in row["tools"]] == ["search", "read", "answer"]
        assert trajectory.tools == row["tools"]
        calls = [call for one in row["messages"] for call in one.get("tool_calls") or ()]
        assert calls and {call["type"] for call in calls} == {"function"}
        assert row["messages"][-1]["role"] == "assistant"
    assert told["step"] == 1 and told["loss"] > 0


@apart
@pytest.mark.slow
def test_a_function_of_the_rubric_that_fails_is_not_zero(scripted: dict[str, Any]) -> None:
    failed = scripted["reward"]
    assert "a reward function failed: broken: KeyError: 'no judge answers'" in failed["reward"]
    assert failed["metrics"]["exact"] == 1.0 and "broken" not in failed["metrics"]
    assert scripted["metric"]["reward"] == 1.0 and "broken" not in scripted["metric"]["metrics"]


@apart
@pytest.mark.slow
def test_an_empty_reply_is_a_turn_and_no_failure(scripted: dict[str, Any]) -> None:
    """verifiers ends a rollout at it with an error, and nothing would ever be learned of it."""
    silent = scripted["silent"]
    assert silent["reward"] == 0.0 and silent["metrics"]["num_turns"] == 5
    replies = [one["content"] for one in silent["messages"] if one["role"] == "assistant"]
    assert replies == [""] * 5


@apart
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "step",
            r"^EnvironmentFailedError: environment 'verifiers:play-hub' failed: KeyError",
        ),
        ("hang", r"^EnvironmentTimeoutError: .* did nothing within 0.2 s of the model's last reply"),
        ("ended", r"^EnvironmentFailedError: .* ended before the model said anything: timeout_reached"),
        ("group", r"^ConfigurationError: .* its rubric scores the rollouts of a group together"),
        ("kind", r"^ConfigurationError: .* cannot be made with \{'kind': 'chess'\}: .*no kind 'chess'"),
        (
            "name",
            r"^ConfigurationError: .*No module named 'no_such_game'.*`prime env install OWNER/no-such",
        ),
        ("thread", r"^ConfigurationError: .* in the main thread alone"),
    ],
)
def test_a_failure_says_what_and_what_to_do(scripted: dict[str, Any], what: str, words: str) -> None:
    assert re.search(words, scripted[what]), scripted[what]


@apart
@pytest.mark.slow
def test_an_environment_leaves_the_program_its_signals_and_its_event_loop(scripted: dict[str, Any]) -> None:
    assert scripted["handlers"] and scripted["loop went on"] == "right"


@apart
@pytest.mark.slow
def test_a_cancelled_rollout_ends_in_its_environment(scripted: dict[str, Any]) -> None:
    assert scripted["cancelled"]


@apart
@pytest.mark.slow
def test_rows_are_held_out_where_the_environment_holds_out_none(scripted: dict[str, Any]) -> None:
    rows = scripted["rows"]
    assert len(set(rows["train"] + rows["val"])) == len(rows["train"] + rows["val"]) == 60
    assert len(rows["val"]) == 24  # a fifth of 120 rows, of which each is there twice
    assert len(scripted["held out"]) == 7 and {one["dataset"] for one in scripted["held out"]} == {"eval"}


@apart
@pytest.mark.slow
def test_a_request_has_the_environment_s_arguments_and_the_user_s(scripted: dict[str, Any]) -> None:
    asked = scripted["last request"]
    assert (asked["top_p"], asked["stop"], asked["top_k"], asked["temperature"]) == (0.5, ["!"], 3, 0.25)
    assert asked["max_completion_tokens"] == 9 and "n" not in asked


def test_a_version_without_environments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of 0.4 has its version and nothing else; the rest is in `verifiers.v1`."""
    newer = ModuleType("verifiers")
    vars(newer)["__version__"] = "0.4.0"
    monkeypatch.setitem(sys.modules, "verifiers", newer)
    with pytest.raises(
        ConfigurationError, match=r"verifiers 0\.4\.0 is installed.*'verifiers>=0\.1\.14,<0\.2'"
    ):
        find_environment("verifiers:wordle")


def test_a_folder_of_its_name_is_not_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "verifiers").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "verifiers", raising=False)
    try:
        with pytest.raises(ConfigurationError, match=r"needs 'verifiers', which is not installed"):
            find_environment("verifiers:wordle")
    finally:
        sys.modules.pop("verifiers", None)


def test_a_row_has_the_id_of_its_content() -> None:
    row = {"question": "1 + 1?", "answer": "2"}
    assert (
        row_id({**row, "example_id": 4}) == row_id({**row, "example_id": 9}) != row_id({**row, "answer": "3"})
    )
    assert row_id({**row, "image": object()}) is None


@pytest.mark.parametrize(
    ("function", "metric"),
    [("reward", "reward_function"), ("<lambda>", "lambda"), ("a/b", "a_b"), ("num_turns", "num_turns")],
)
def test_a_metric_has_a_name_that_can_be_logged(function: str, metric: str) -> None:
    assert metric_name(function) == metric


def test_results_that_are_no_success_are_left_out(tmp_path: Path) -> None:
    ask, told = {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}
    good = {"prompt": [ask], "completion": [told, {"role": "user", "content": "Right."}], "reward": 1.0}
    others = [
        {**good, "reward": 0.5},
        {**good, "reward": None},
        {**good, "error": {"error": "ModelError"}},
        {**good, "completion": [ask]},
    ]
    saved = tmp_path / "results.jsonl"
    saved.write_text("".join(json.dumps(one) + "\n" for one in (good, *others)))
    assert sft_rows(saved) == [{"messages": [ask, told]}]
    assert len(sft_rows(saved, least=0.5)) == 2
    saved.write_text("no JSON\n")
    with pytest.raises(ConfigurationError, match=r"no results\.jsonl of verifiers"):
        sft_rows(saved)
