"""Tasksets and harnesses of verifiers 0.4 with the real library, on a real server."""

import json
import os
import subprocess
from pathlib import Path

import pytest

import art

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
PYTHON = ROOT / ".venv-verifiers-tasksets" / "bin" / "python"
NEMO_GYM = ROOT / ".venv-nemo-gym" / "bin" / "python"
MISSING = not PYTHON.exists() and not os.environ.get("ART_TEST_EVERYTHING")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING, reason="no environment: `make .venv-verifiers-tasksets/.installed`"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasksets")
    with art.LocalBackend(path=folder) as backend:
        model = art.TrainableModel(name="address", project="hub", base_model="art/nano-tools")
        art.run(model.register(backend))
        address = [str(model.inference_base_url), str(model.inference_api_key)]
        tokenizer = folder / "hub" / "models" / "address" / "checkpoints" / "0000"
        variables = {
            **os.environ,
            "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{PROGRAMS}",
        }
        command = [PYTHON, "-W", "ignore", PROGRAMS / "taskset_rollouts.py", *address, tokenizer]
        command += [NEMO_GYM] if NEMO_GYM.exists() else []
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=580, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_each_task_is_in_one_split(found):
    splits = found["splits"]
    assert len({*splits["train"], *splits["val"]}) == 6 and len(splits["val"]) == 3


@pytest.mark.parametrize(("harness", "turns"), [("null", 1), ("bash", 3)])
def test_every_sampled_token_of_a_harness_is_in_the_ledger(found, harness, turns):
    rollout = found[harness]
    assert rollout["named"] == rollout["ledger"] and len(rollout["named"]) == turns
    assert rollout["tokens"] == rollout["counted"] > 0
    assert rollout["metadata"]["harness"] == harness


@pytest.mark.parametrize(("harness", "turns"), [("null", 1), ("bash", 3)])
def test_each_token_that_passed_a_proxy_before_the_server_is_in_the_ledger_once(found, harness, turns):
    """The ids on the wire are those of the ledger, and each is in the trajectory that is trained."""
    counted = found["counted"][harness]
    assert counted["wire"] == counted["ledger"] and all(ids for _, ids in counted["wire"])
    assert counted["trained"] == [sample for sample, _ in counted["wire"]]
    assert len({*counted["trained"]}) == len(counted["trained"]) == turns


def test_the_reward_and_its_parts_are_those_of_the_trace(found):
    for harness in ("null", "bash"):
        one = found[harness]
        # Its only function has the weight 2.
        assert one["reward"] == 2 * one["metrics"]["reward/exact"]
        assert "length" in one["metrics"]


def test_rewards_are_what_verifiers_alone_gives(found):
    compared = found["compared"]
    assert len(compared) == 6
    for word, one in compared.items():
        assert one["said"] == one["library_said"] and one["ours"] == one["library"], word
        assert (one["ours"] is None) is (word == "red")
    assert {1.0, 2.0} == {one["ours"] for one in compared.values()} - {None}


def test_rollouts_are_trained(found):
    assert found["sheet"]["data/sheet/trained_rollouts"] == found["sheet"]["data/sheet/started_rollouts"] == 4
    assert found["sheet"]["data/sheet/trained_tokens"] == found["sheet"]["data/sheet/started_tokens"]


def test_wrong_names_are_refused_with_verifiers_words(found):
    assert "taskset 'no_such_taskset' not found" in found["unknown"]
    assert "harness 'no_such_harness' not found" in found["harness"] and "null" in found["harness"]
    assert "'moon'" in found["runtime"] and "subprocess" in found["runtime"]


@pytest.mark.parametrize("harness", ["mini_swe_agent", "terminus_2", "claude_code", "codex", "openclaw"])
def test_a_harness_that_needs_a_container_is_refused_where_there_is_none(found, harness):
    told = found["containers"][harness]
    assert told.startswith("ConfigurationError") and f"the harness {harness!r} runs in a container" in told
    assert "the runtime is 'subprocess'" in told and "--environment-option 'runtime=" in told
    assert "run a coding agent's own command in an art.rollout" in told


def test_what_a_container_s_runtime_lacks_is_said_before_a_rollout(found):
    told = found["containers"]
    assert "a task of it runs in a container alone" in told["image"]
    assert "the harness 'codex' runs in a container alone" in told["roles"]
    assert "needs the command `docker`, which is not on the PATH" in told["absent"]
    assert told["docker"] == "made"


def test_several_agents_are_refused_where_one_is_trained_and_one_where_several_are(found):
    assert (
        "'verifiers:two_agents' has 2 agents (EchoEnv: teller, echo), and one is trained" in found["several"]
    )
    assert "`art policies --environment verifiers:two_agents` trains a model for each" in found["several"]
    assert "`art train --environment verifiers:say_words` trains it" in found["single"]


def test_an_environment_s_own_class_with_one_agent_is_played(found):
    """What it starts is started once for all rollouts, and ended; its agent's own model is not asked."""
    told = found["one_seat"]
    assert {*told["played"]} == {"yes", "no", "maybe", "blue", "red", "green"}
    for word, one in told["played"].items():
        assert one["named"] == one["samples"] and one["branches"] == 0
        assert one["asked"][0] == f"respond with {word}, {word} or {word}"
        if word == "red":
            assert len(one["samples"]) == 1 and "red is not played on" in one["reward"]
        else:
            assert one["metrics"]["starts"] == 1
            parts = [float(word in said) for said in one["said"]]
            assert len(parts) == 2 and one["reward"] == parts[0] + 0.5 * parts[1]
            assert (one["metrics"]["reward/first"], one["metrics"]["reward/second"]) == tuple(parts)
        assert {*one["temperatures"]} == {2.0}, "not that of the class"
    assert told["started_after"] == -1


@pytest.mark.skipif(
    not NEMO_GYM.exists() and not os.environ.get("ART_TEST_EVERYTHING"), reason="no .venv-nemo-gym"
)
def test_verifiers_own_taskset_of_nemo_gym_gives_what_verifiers_alone_gives(found):
    compared = found["nemo_gym"]
    assert {*compared} == {*"ABCDEF"}
    for letter, one in compared.items():
        assert one["said"] == one["library_said"] and one["ours"] == one["library"], letter
        assert one["metrics"]["reward/nemo_gym"] == one["ours"]
    assert {1.0} <= {one["ours"] for one in compared.values()} <= {0.0, 1.0}


def test_each_of_several_agents_is_a_role_with_a_model_of_its_own(found):
    """What each said is its own model's, scored as the environment scores it, and trains that model alone."""
    told = found["agents"]
    teller, echo, word = told["teller"], told["echo"], told["teller"]["asked"][0].split()[-1]
    assert told["roles"] == ["teller", "echo"]
    assert teller["rewards"] == [float(word in said) for said in teller["said"]]
    assert [asked.split()[3] for asked in echo["asked"]] == [
        (said.split() or ["or"])[0] for said in teller["said"]
    ]
    same = [one == other for one, other in zip(teller["said"], echo["said"], strict=True)]
    assert echo["rewards"] == [0.25 + 0.5 * one for one in same]
    for role in (teller, echo):
        assert role["samples"] == [1] * 4 and role["trained"] == 4 and role["step"] == 1
        assert role["metadata"]["scenario_id"] == told["scenario"] and role["metadata"]["harness"] == "null"
    assert "completions of 'echo' are kept by ART's server" in told["lone"]
    assert told["short"].startswith("EnvironmentTimeoutError")


def test_a_rollout_that_does_not_end_is_a_failed_one(found):
    assert "EnvironmentTimeoutError" in found["short"]["error"]


def test_no_key_stays_behind(found):
    assert found["keys"] == []


def test_the_train_client_of_verifiers_is_answered_with_ids_that_the_ledger_has(found):
    """It renders the prompt itself, and asks /inference/v1/generate of a rollout's address."""
    rendered, sample = found["rendered"], found["rendered"]["sample"]
    assert rendered["errors"] == [] and rendered["named"] == [rendered["sample_id"]]
    assert rendered["ids"] == [*sample["prompt_ids"], *sample["completion_ids"]]
    sampled = rendered["logprobs"][-len(sample["completion_logprobs"]) :]
    assert sampled == pytest.approx(sample["completion_logprobs"], abs=1e-6)
