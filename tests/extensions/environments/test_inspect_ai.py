"""Tasks of the real inspect-ai, in an environment of its own (`make test-all` makes it)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import art
from art_extensions.testing import LlmServer
from library_programs import needs, told_by

PLACE = ".venv-environments"
pytestmark = [
    pytest.mark.slow,
    needs(PLACE),
]
SLOW_S = 3.0


def reply(body: Mapping[str, Any]) -> str:
    """Says the word, but for one model and one word."""
    word = re.findall(r"Say (\w+)", str(body["messages"][-1]["content"]))[0]
    if body["model"] == "slow":
        time.sleep(SLOW_S)
    return "no" if body["model"] == f"wrong-at-{word[1:]}" else word


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with (
        LlmServer(reply) as endpoint,
        art.LocalBackend(path=tmp_path_factory.mktemp("inspect") / "art") as backend,
    ):
        address = art.TrainableModel(name="address", project="inspect", base_model="art/nano-tools")
        art.run(address.register(backend))
        server = str(address.inference_base_url).removesuffix("/v1")
        words = (endpoint.base_url, endpoint.key, server, str(address.inference_api_key))
        return told_by(PLACE, "inspect_rollouts.py", *words)


def test_the_scores_are_those_of_inspect_itself(told: dict[str, Any]) -> None:
    assert told["ours"] == told["by inspect"] == [1, 1, 1, 0, 1, 1]


def test_each_score_is_a_metric_and_one_is_the_reward(told: dict[str, Any]) -> None:
    for one, chosen in zip(told["several"], told["chosen"], strict=True):
        parts = {name: one["metrics"][name] for name in ("exact", "parts_length", "parts_right", "turns")}
        assert parts == {"exact": 1, "parts_length": 2, "parts_right": 1, "turns": 1}
        assert one["reward"] == 1 and chosen["reward"] == 2
        assert "Say w" in one["show"] and "parts_length: 2" in one["show"]
    assert all("no score 'length': exact, parts_length, parts_right" in one for one in told["no score"])


def test_a_score_that_is_no_number_is_no_reward(told: dict[str, Any]) -> None:
    assert all("its scorer gave no number" in one["reward"] for one in told["unscored"])


def test_a_solver_that_fails_fails_its_rollout_alone(told: dict[str, Any]) -> None:
    first, second, third = told["fails"]
    assert first["reward"] == third["reward"] == 1
    assert second.startswith("EnvironmentFailedError") and "no board" in second


def test_a_sample_that_takes_too_long_is_cut(told: dict[str, Any]) -> None:
    (slow,) = told["slow"]
    assert slow.startswith("EnvironmentFailedError") and "before the model said anything" in slow


def test_all_samples_are_evaluated_unless_some_are_for_training(told: dict[str, Any]) -> None:
    count, why = told["val"]
    assert count == 5 and re.match(r"ConfigurationError: .*no samples for 'train'.*train=N and val=M", why)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("needs val", r"train=3 needs val"),
        ("file", r"there is no file nothing\.py; write inspect:FILE\.py@TASK"),
        ("task", r"no task 'sing' there; tasks: .*say.*sums"),
        ("package", r"no package 'evals' has tasks of inspect"),
        ("argument", r"unexpected keyword argument 'counts'.*count: 'int' = 60"),
        ("empty", r"has no samples"),
    ],
)
def test_a_wrong_name_or_option_says_what_there_is(told: dict[str, Any], case: str, words: str) -> None:
    assert told[case].startswith("ConfigurationError") and re.search(words, told[case]), told[case]


def test_the_logging_of_the_program_stays(told: dict[str, Any]) -> None:
    assert told["logging"] is True


def test_samples_of_a_server_of_ours_are_trained_and_evaluated(told: dict[str, Any]) -> None:
    trained = told["trained"]
    assert all(trained["tools"]) and min(trained["turns"]) >= 1
    assert trained["sheet"]["data/sheet/trained_rollouts"] == 4
    assert trained["sheet"]["data/sheet/started_tokens"] == trained["sheet"]["data/sheet/trained_tokens"] > 0
    assert trained["evaluated"] == [2, 2]


def test_code_that_blocks_costs_its_rollouts_and_those_until_it_ends() -> None:
    with LlmServer(lambda body: "no") as endpoint:
        told = told_by(PLACE, "blocked_task.py", endpoint.base_url, endpoint.key)
    first, second = told["blocked"]
    assert first.startswith("EnvironmentTimeoutError") and "a rollout did not end within 2 s" in first
    assert told["seconds"] < 10
    for one in (second, *told["following"]):  # each waited for the first
        assert one.startswith("EnvironmentFailedError")
        assert "an earlier rollout blocks inspect in this process" in one
    assert told["later"] == ["1.0"]


def test_a_package_that_cannot_be_imported_is_an_error_that_names_what_is_missing(tmp_path: Path) -> None:
    """.venv-environments has inspect-evals without its dependencies."""
    told = told_by(PLACE, "packages_of_tasks.py", str(tmp_path))
    lacks = (
        "MissingExtraError: inspect:{}/gsm8k: the package {!r} needs the module {!r}, which is not installed"
    )
    evals = told["inspect_evals"]
    assert evals.startswith(lacks.format("inspect_evals", "inspect_evals", "inspect_evals_utils"))
    assert "pip install inspect_evals " in evals
    lacking = told["lacking_tasks"]
    assert lacking.startswith(lacks.format("lacking_tasks", "lacking-tasks", "nobody_has"))
    old = told["old_tasks"]
    assert old.startswith("ConfigurationError: inspect:old_tasks/gsm8k: the package 'old-tasks' cannot be")
    assert "ImportError: cannot import name 'a_name_of_later'" in old and "pip install old-tasks" in old
