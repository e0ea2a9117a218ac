"""tau2 and AgentDojo of the real inspect-evals, in an environment of its own (`make test-all` makes it)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

import art
from art_extensions.testing import LlmServer, ToolCalls
from library_programs import needs, told_by

PLACE = ".venv-environments"
pytestmark = [
    pytest.mark.slow,
    needs(PLACE),
]
DOMAINS = ("tau2:airline", "tau2:retail", "tau2:telecom")
SUITES = ("agentdojo:banking", "agentdojo:slack", "agentdojo:travel", "agentdojo:workspace")
DONE = "Done."


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    plans = tmp_path_factory.mktemp("plans") / "plans.json"

    def reply(body: Mapping[str, Any]) -> Any:
        """Answers with the next step of the plan of this model."""
        steps = json.loads(plans.read_text())[body["model"]]
        done = sum(message["role"] == "assistant" for message in body["messages"])
        step = steps[done] if done < len(steps) else DONE
        return step if isinstance(step, str) else ToolCalls([tuple(call) for call in step])

    with (
        LlmServer(reply) as endpoint,
        art.LocalBackend(path=tmp_path_factory.mktemp("evals") / "art") as backend,
    ):
        address = art.TrainableModel(name="address", project="evals", base_model="art/nano-words")
        art.run(address.register(backend))
        server = str(address.inference_base_url).removesuffix("/v1")
        words = (endpoint.base_url, endpoint.key, str(plans), server, str(address.inference_api_key))
        return told_by(PLACE, "inspect_evals_rollouts.py", *words, timeout_s=500)


@pytest.mark.parametrize("name", [*DOMAINS, *SUITES])
def test_a_model_that_solves_the_task_gets_the_reward(told: dict[str, Any], name: str) -> None:
    assert [one["reward"] for one in told[name]["right"]] == [1, 1]
    assert all(one["metrics"]["truncated"] == 0 for one in told[name]["right"])


def test_the_parts_of_the_reward_are_metrics(told: dict[str, Any]) -> None:
    parts = {
        "tau2:airline": {"airline_scorer", "db_match", "score_communicated_info"},
        "tau2:retail": {"retail_scorer", "db_match", "score_communicated_info"},
        "tau2:telecom": {"telecom_scorer", "evaluate_required_actions", "env_assertions"},
    }
    for name, wanted in parts.items():
        for one in [*told[name]["right"], *told[name]["nothing"]]:
            whole, *others = (
                one["metrics"][part] for part in sorted(wanted, key=lambda part: "scorer" not in part)
            )
            assert wanted <= one["metrics"].keys() and one["reward"] == whole == min(others)
    lost = [one for name in DOMAINS for one in told[name]["nothing"] if one["reward"] == 0]
    assert len(lost) >= 3


def test_a_model_that_does_nothing_gets_what_the_package_gives(told: dict[str, Any]) -> None:
    (telecom,) = told["telecom"]["by inspect"]
    assert f"tau2:telecom/{telecom[0]}" == told["tau2:telecom"]["nothing"][0]["scenario"]
    assert telecom[1] == "I" and told["tau2:telecom"]["nothing"][0]["reward"] == 0
    for name in SUITES:
        theirs = {
            f"{name}/{sample}": float(score["utility"] == "C") for sample, score in told[name]["by inspect"]
        }
        assert theirs == {one["scenario"]: one["reward"] for one in told[name]["nothing"]}
        assert 0 in theirs.values()


@pytest.mark.parametrize("name", SUITES)
def test_an_attack_that_succeeds_costs_the_reward(told: dict[str, Any], name: str) -> None:
    # The package's own solution of a user's task does not always solve it under an attack.
    for one in told[name]["resisting"]:
        assert one["reward"] == one["metrics"]["utility"] and one["metrics"]["security"] == 0
    assert 1 in [one["reward"] for one in told[name]["resisting"]]
    # The attacker succeeds where the package's own solver of the attacker's goal does.
    succeeded = {
        f"{name}/{sample}": score["security"] == "C" for sample, score in told[name]["attackers by inspect"]
    }
    for one in told[name]["falling"]:
        assert (one["reward"], one["metrics"]["security"]) == (0, succeeded[one["scenario"]])


@pytest.mark.parametrize(("name", "sizes"), [*zip(DOMAINS, [(30, 20), (74, 40), (74, 40)], strict=True)])
def test_the_splits_are_those_of_the_benchmark(
    told: dict[str, Any], name: str, sizes: tuple[int, int]
) -> None:
    train, val = told[name]["splits"]
    assert (len(train), len(val)) == sizes and not {*train} & {*val}


@pytest.mark.parametrize("name", SUITES)
def test_a_task_of_the_user_is_in_one_split_whatever_the_attack(told: dict[str, Any], name: str) -> None:
    train, val = told[name]["splits"]
    assert len(val) == (len(train) + len(val)) // 5 and not {*train} & {*val}
    attacked = [{one.rpartition("-i")[0] for one in split} for split in told[name]["attacked splits"]]
    assert attacked == [{*train}, {*val}]


def test_the_user_is_whoever_is_asked_for(told: dict[str, Any]) -> None:
    others = told["telecom"]

    def heard(case: str) -> list[str]:
        return [one["content"] for one in others[case]["messages"] if one["role"] == "user"]

    assert heard("a model") == ["My phone is broken."]
    assert len(heard("a function")) == 1 and heard("a function")[0].startswith("Status Bar:")
    assert re.fullmatch(r"EnvironmentFailedError.*the user failed: .*KeyError.*", others["a user that fails"])
    first, *more = heard_of(told["tau2:telecom"]["nothing"][0])
    assert "Reason for call" in first and more == ["Yes, please do that."] * 3


def heard_of(rollout: Mapping[str, Any]) -> list[str]:
    return [one["content"] for one in rollout["messages"] if one["role"] == "user"]


def test_a_request_that_fails_fails_the_rollout(told: dict[str, Any]) -> None:
    assert told["telecom"]["no key"].startswith("AuthenticationError")


def test_a_rollout_ends_after_the_turns_that_it_may_take(told: dict[str, Any]) -> None:
    endless = told["telecom"]["endless"]
    assert endless["reward"] == 0
    assert (endless["metrics"]["turns"], endless["metrics"]["truncated"]) == (3, 1)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, r"unknown environment 'tau2:airlin'.*tau2:airline, tau2:retail, tau2:telecom"),
        (1, r"unknown environment 'agentdojo:bank'.*did you mean 'banking'"),
        (2, r"user 'no_colon': write module:name"),
        (3, r"max_turns=0: give 1 or more"),
        (4, r"injection_task_ids with an attack: give attack='important_instructions'"),
    ],
)
def test_a_wrong_name_or_option_of_these_says_what_there_is(
    told: dict[str, Any], number: int, words: str
) -> None:
    refused = told["refused"][number]
    assert refused.startswith("ConfigurationError") and re.search(words, refused), refused


@pytest.mark.parametrize("name", ["tau2:retail", "agentdojo:banking"])
def test_each_token_of_a_model_of_ours_is_trained(told: dict[str, Any], name: str) -> None:
    trained = told["trained"][name]
    assert all(trained["tools"]) and min(trained["turns"]) >= 1
    assert trained["sheet"]["data/sheet/trained_rollouts"] == 2
    assert trained["sheet"]["data/sheet/started_tokens"] == trained["sheet"]["data/sheet/trained_tokens"] > 0
