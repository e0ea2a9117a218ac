"""mini-swe-agent, the package, works in our sandbox and is trained on what its model sampled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from harbor_tasks import make_task

import art
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError, EnvironmentFailedError
from art.trajectories import is_choice
from art.types import Unscored, sample_id
from art_extensions.harbor.environment import HarborEnvironment

PYTHON = Path(__file__).parents[3] / ".venv-agents" / "bin" / "python"
MISSING = not PYTHON.exists() and not os.environ.get("ART_TEST_EVERYTHING")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.frameworks,
    pytest.mark.skipif(MISSING, reason="no mini-swe-agent: `make .venv-agents/.installed`"),
]
TOML = "[agent]\ntimeout_sec = 240.0\n"
WRITE = "echo hello > hello.txt"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[art.LocalBackend]:
    with art.LocalBackend(path=tmp_path_factory.mktemp("art")) as backend:
        yield backend


@pytest.fixture
async def model(backend: art.LocalBackend) -> art.TrainableModel:
    model = art.TrainableModel(name="coder", project="agents", base_model="art/nano-words")
    await model.register(backend)
    return model


def writing(command: str) -> dict[str, Any]:
    """A request whose reply is this command: the model chooses a word before it."""
    escaped = command.replace(".", "[.]")
    return {"extra_body": {"guided_regex": f"(I|we) \n```mswea_bash_command\n{escaped}\n```"}}


async def rolled(model: art.TrainableModel, task: Path, **options: Any) -> art.Trajectory:
    """Runs a rollout, and checks that all which was sampled is in it once."""
    environment = find_environment(
        f"harbor:{task}", agent="mini-swe-agent", agent_python=str(PYTHON), **options
    )
    (scenario,) = environment.scenarios("train")
    trajectory = await environment.rollout(model, scenario, seed=3, max_tokens=64)
    headers = {"authorization": f"Bearer {model.inference_api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=240) as http:
        told = (await http.get(f"{model.inference_base_url}/rollouts/{trajectory.rollout_id}")).json()
    histories = [trajectory, *trajectory.additional_histories]
    named = [sample_id(one) for part in histories for one in part.messages_and_choices if is_choice(one)]
    assert sorted(named) == sorted(one["sample_id"] for one in told["samples"]) and not told["forks"]
    assert len(named) == trajectory.metrics["turns"] and trajectory.metrics["forks"] == 0
    if not trajectory.additional_histories:
        for before, after in pairwise(told["samples"]):
            whole = [*before["prompt_ids"], *before["completion_ids"]]
            assert after["prompt_ids"][: len(whole)] == whole
    return trajectory


async def test_the_package_s_agent_works_in_the_jail_and_is_trained(
    backend: art.LocalBackend, model: art.TrainableModel, tmp_path: Path
) -> None:
    task = make_task(tmp_path / "hello", {"task.toml": TOML})
    right = await rolled(model, task, max_turns=2, request=writing(WRITE))
    wrong = await rolled(model, task, max_turns=2, request=writing("cat data.txt"))
    assert (right.reward, wrong.reward) == (1.0, 0.25)
    expected = {"turns": 2, "commands": 2, "malformed": 0, "submitted": 0, "agent_timed_out": 0}
    assert {name: wrong.metrics[name] for name in expected} == expected
    system, instruction, _, seen, _ = wrong.messages()
    assert "mswea_bash_command" in str(system["content"]), "the package's own prompt"
    assert "Write the word hello" in str(instruction["content"])
    assert "<returncode>0</returncode>\n<output>\nsome</output>" in str(seen["content"])
    assert not right.additional_histories and not wrong.additional_histories
    result = await backend.train(model, [art.TrajectoryGroup([right, wrong])], learning_rate=1e-6)
    choices = [one for part in (right, wrong) for one in part.messages_and_choices if is_choice(one)]
    sampled = sum(choice.model_extra["completion_tokens"] for choice in choices)
    assert result.metrics["data/sheet/trained_tokens"] == sampled


async def test_it_ends_when_the_model_submits_or_writes_no_command(
    model: art.TrainableModel, tmp_path: Path
) -> None:
    task = make_task(tmp_path / "hello", {"task.toml": TOML})
    submitted = await rolled(model, task, request=writing(SUBMIT))
    assert {name: submitted.metrics[name] for name in ("turns", "submitted")} == {"turns": 1, "submitted": 1}
    noise = await rolled(model, task)
    assert noise.reward == 0.25 and noise.metrics["malformed"] == noise.metrics["turns"] == 3


async def test_one_process_runs_the_agents_of_several_rollouts_until_each_has_ended(
    model: art.TrainableModel, tmp_path: Path
) -> None:
    """One of them does not end: it is stopped, and its work is tested."""
    task = make_task(tmp_path / "hello", {"task.toml": "[agent]\ntimeout_sec = 60.0\n"})
    environment = HarborEnvironment(
        str(task), agent="mini-swe-agent", agent_python=str(PYTHON), request=writing(f"{WRITE}; sleep 300"),
        command_s=300, max_turns=1,
    )  # fmt: skip
    (scenario,) = environment.scenarios("train")
    others = HarborEnvironment(
        str(task), agent="mini-swe-agent", agent_python=str(PYTHON), max_turns=1, request=writing(WRITE)
    )
    others._agents = environment._agents
    both = [one.rollout(model, scenario, max_tokens=64) for one in (environment, others, others)]
    late, *ended = await asyncio.gather(*both)
    assert late.reward == 1.0 and late.metrics["agent_timed_out"] == 1 and "turns" not in late.metrics
    assert sum(is_choice(one) for one in late.messages_and_choices) == 1, "what it sampled is kept"
    assert [(one.reward, one.metrics["turns"]) for one in ended] == [(1.0, 1.0)] * 2
    process = environment._agents._process
    assert process is not None and process.ended and process._process.returncode is not None
    again = await others.rollout(model, scenario, max_tokens=64)
    assert again.reward == 1.0 and others._agents._process is not process


async def test_an_agent_that_asked_for_nothing_is_unscored(model: art.TrainableModel, tmp_path: Path) -> None:
    task = make_task(tmp_path / "hello", {"task.toml": "[agent]\ntimeout_sec = 0.2\n"})
    environment = find_environment(f"harbor:{task}", agent="mini-swe-agent", agent_python=str(PYTHON))
    (scenario,) = environment.scenarios("train")
    trajectory = await environment.rollout(model, scenario)
    assert (
        isinstance(trajectory.reward, Unscored) and "asked the model for nothing" in trajectory.reward.reason
    )
    assert trajectory.metrics["agent_timed_out"] == 1 and trajectory.metrics["tests/reward"] == 0.25


async def test_a_configuration_that_is_none_fails_with_the_package_s_words(
    model: art.TrainableModel, tmp_path: Path
) -> None:
    task = make_task(tmp_path / "hello", {"task.toml": TOML})
    environment = find_environment(
        f"harbor:{task}", agent="mini-swe-agent", agent_python=str(PYTHON), agent_config="none.yaml"
    )
    (scenario,) = environment.scenarios("train")
    with pytest.raises(EnvironmentFailedError, match="Could not find config file for none"):
        await environment.rollout(model, scenario)


async def test_a_context_that_has_no_room_for_the_prompt_fails_with_the_server_s_words(
    backend: art.LocalBackend, tmp_path: Path
) -> None:
    small = art.TrainableModel(name="small", project="agents", base_model="art/nano")
    await small.register(backend)
    task = make_task(tmp_path / "hello", {"task.toml": TOML})
    environment = find_environment(f"harbor:{task}", agent="mini-swe-agent", agent_python=str(PYTHON))
    (scenario,) = environment.scenarios("train")
    with pytest.raises(EnvironmentFailedError, match="the maximum context length of small is 1024"):
        await environment.rollout(small, scenario)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"agent_python": "none/bin/python"}, "is no file"),
        ({}, "pip install mini-swe-agent"),
        ({"agent_python": str(PYTHON), "system_prompt": "Hi"}, "system_prompt has no effect"),
        ({"agent_python": str(PYTHON), "shown_chars": 9}, "shown_chars has no effect"),
        ({"agent": None, "agent_python": str(PYTHON)}, "agent_python has no effect"),
        ({"agent": None, "agent_config": "mini.yaml"}, "agent_config has no effect"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    task = make_task(tmp_path / "hello")
    with pytest.raises(ConfigurationError, match=said):
        find_environment(f"harbor:{task}", **{"agent": "mini-swe-agent", **options})


async def test_a_model_without_a_server_of_ours_is_refused(tmp_path: Path) -> None:
    task = make_task(tmp_path / "hello")
    environment = find_environment(f"harbor:{task}", agent="mini-swe-agent", agent_python=str(PYTHON))
    (scenario,) = environment.scenarios("train")
    model = art.Model(name="any", project="p", inference_base_url="http://x/v1", inference_api_key="k")
    with pytest.raises(ConfigurationError, match="use a registered art"):
        await environment.rollout(model, scenario)
