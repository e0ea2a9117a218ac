"""A trial gives what `harbor run` gives, whatever an agent or the tests do."""

import asyncio
import json
import math
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from harbor_tasks import make_task
from typer.testing import CliRunner

import art
from art.cli.main import app
from art.environments.adapters.registry import find_environment
from art.errors import EnvironmentFailedError, EnvironmentTimeoutError
from art.types import Unscored
from art_extensions.harbor.environment import HarborEnvironment
from art_extensions.harbor.jail import ProcessJail
from art_extensions.harbor.shell_agent import command_of
from art_extensions.harbor.task_folders import HarborTask
from art_extensions.harbor.trial import run_trial
from art_extensions.testing import LlmServer
from library_programs import needs
from waiting import DEADLINE_S

ROOT = Path(__file__).parents[3]
HARBOR = ROOT / ".venv-harbor" / "bin"
PROGRAMS = Path(__file__).parent / "programs"
apart = needs(".venv-harbor")
pytestmark = pytest.mark.slow


def harbor_reward(task: Path, agent: str, folder: Path) -> float:
    """What `harbor run` of the real package says, with the jail as its sandbox."""
    paths = os.pathsep.join([str(ROOT / "src"), str(PROGRAMS)])
    command = [HARBOR / "harbor", "run", "--path", task, "--agent", agent, "--jobs-dir", folder]
    command += ["--job-name", agent, "--env", "jail_environment:JailEnvironment", "--yes", "--quiet"]
    subprocess.run(
        command,
        check=True,
        timeout=300,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": paths, "HARBOR_TELEMETRY": "0"},
    )
    (result,) = (folder / agent).glob("*/result.json")
    rewards = json.loads(result.read_text())["verifier_result"]["rewards"]
    return float(rewards["reward"])


@apart
async def test_the_solution_and_nothing_give_what_harbor_says(tmp_path):
    task = make_task(tmp_path / "hello")
    environment = HarborEnvironment(str(task))
    (scenario,) = environment.scenarios("train")
    for agent, expected in (("oracle", 1.0), ("nop", 0.25)):
        assert harbor_reward(task, agent, tmp_path / "jobs") == expected
        assert await environment.score(scenario, agent) == expected


@apart
async def test_a_sandbox_of_harbors_form_gives_the_same(tmp_path, monkeypatch):
    paths = os.pathsep.join([str(ROOT / "src"), str(PROGRAMS)])
    monkeypatch.setenv("PYTHONPATH", paths)
    environment = HarborEnvironment(
        str(make_task(tmp_path / "hello")),
        sandbox="jail_environment:JailEnvironment",
        python=str(HARBOR / "python"),
    )
    (scenario,) = environment.scenarios("train")
    assert await environment.score(scenario, "oracle") == 1.0
    assert await environment.score(scenario, "nop") == 0.25


@apart
async def test_a_sandbox_that_harbor_cannot_make_says_why(tmp_path):
    environment = HarborEnvironment(
        str(make_task(tmp_path / "hello")), sandbox="docker", python=str(HARBOR / "python")
    )
    (scenario,) = environment.scenarios("train")
    with pytest.raises(EnvironmentFailedError, match="Harbor's sandbox 'docker'"):
        await environment.score(scenario, "nop")


@pytest.mark.parametrize(
    ("tests", "reward"),
    [
        ("echo 0.5 > /logs/verifier/reward.txt", 0.5),
        ("echo nan > /logs/verifier/reward.txt", "no finite number"),
        ("echo great > /logs/verifier/reward.txt", "no finite number"),
        (": > /logs/verifier/reward.txt", "is empty"),
        ("true", "wrote no reward"),
        ("exit 3", "wrote no reward (status 3)"),
        ('echo \'{"reward": 1, "speed": 0.5}\' > /logs/verifier/reward.json', 1.0),
        ("echo '{\"speed\": 0.5}' > /logs/verifier/reward.json", 0.5),
        ('echo \'{"a": 1, "b": 2}\' > /logs/verifier/reward.json', "none is called 'reward'"),
        ("echo '{\"reward\": NaN}' > /logs/verifier/reward.json", "reward.json"),
        ('echo \'{"reward": "x"}\' > /logs/verifier/reward.json', "no finite number"),
        ("echo '{' > /logs/verifier/reward.json", "no JSON"),
        ("sleep 60", "did not end within 5 s"),
    ],
)
async def test_rewards_are_read_or_the_rollout_is_unscored(tmp_path, tests, reward):
    toml = "[verifier]\ntimeout_sec = 5.0\n"
    folder = make_task(tmp_path, {"tests/test.sh": f"#!/bin/bash\n{tests}\n", "task.toml": toml})
    task = HarborTask.read(folder)

    async def cheat(sandbox):
        await sandbox.run("echo 9 > /logs/verifier/reward.txt", timeout_s=20)

    outcome = await run_trial(task, ProcessJail(task), cheat)
    if isinstance(reward, float):
        assert outcome.reward == reward and math.isfinite(reward)
    else:
        assert isinstance(outcome.reward, Unscored) and reward in outcome.reward.reason


SANDBOXES = [
    pytest.param({}, id="jail"),
    pytest.param(
        {"sandbox": "jail_environment:JailEnvironment", "python": str(HARBOR / "python")},
        marks=apart,
        id="a class of Harbor's",
    ),
]


@pytest.fixture
def sandbox_folder(tmp_path, monkeypatch):
    """Where sandboxes make their folders."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(PROGRAMS)]))
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("options", SANDBOXES)
async def test_an_agent_that_does_not_end_is_stopped_and_its_work_is_tested(
    tmp_path, sandbox_folder, options
):
    toml = "[agent]\ntimeout_sec = 5.0\n"
    environment = HarborEnvironment(str(make_task(tmp_path / "hello", {"task.toml": toml})), **options)
    (scenario,) = environment.scenarios("train")
    task = environment._tasks[scenario.data["task"]]

    async def work(sandbox):
        await sandbox.run("echo hello > hello.txt; sleep 4714", timeout_s=300)

    async with asyncio.timeout(DEADLINE_S):
        outcome = await run_trial(task, environment._make_sandbox(task), work)
    assert outcome.agent_timed_out and outcome.reward == 1.0
    assert not await is_running("sleep 471[4]") and not list(sandbox_folder.iterdir())


@pytest.mark.parametrize("options", SANDBOXES)
@pytest.mark.parametrize("lines", ["RUN sleep 4715\n", "RUN sleep {some}\n" * 3], ids=["one", "all"])
async def test_a_setup_that_hangs_ends_at_its_deadline_and_leaves_nothing(
    tmp_path, sandbox_folder, options, lines
):
    """One line does, or all together: each of them has less time than it may take."""
    deadline = 20.0 if options else 4.0  # the import of Harbor is a part of it
    files = {
        "task.toml": f"[environment]\nbuild_timeout_sec = {deadline}\n",
        "environment/Dockerfile": f"FROM ubuntu:24.04\nWORKDIR /app\n{lines.format(some=deadline * 0.75)}",
    }
    environment = HarborEnvironment(str(make_task(tmp_path / "hello", files)), **options)
    (scenario,) = environment.scenarios("train")
    async with asyncio.timeout(DEADLINE_S / 2):
        with pytest.raises(EnvironmentTimeoutError, match=rf"the setup did not end within {deadline:g} s"):
            await environment.score(scenario, "nop")
    assert not await is_running("sleep 471[5]") and not list(sandbox_folder.iterdir())


async def is_running(pattern):
    found = await asyncio.create_subprocess_exec("pgrep", "-f", pattern, stdout=asyncio.subprocess.PIPE)
    return (await found.communicate())[0] != b""


def answer(body):
    """Looks, then writes, then submits; one reply is no command."""
    replies = sum(one["role"] == "assistant" for one in body["messages"])
    return [
        "I look.\n```bash\nls\n```",
        "hello!",
        "```bash\necho hello > hello.txt\n```",
        "```\nsubmit\n```",
    ][replies]


async def test_a_model_works_in_the_shell(tmp_path):
    environment = find_environment(f"harbor:{make_task(tmp_path / 'hello')}")
    (scenario,) = environment.scenarios("train")
    with LlmServer(answer) as server:
        model = art.Model(
            name="any", project="p", inference_base_url=server.base_url, inference_api_key="test-key"
        )
        trajectory = await environment.rollout(model, scenario)
    assert trajectory.reward == 1.0
    told = [one["content"] for one in trajectory.messages() if one["role"] == "user"]
    assert told[1] == "exit status 0\ndata.txt\nsize.txt" and told[2].startswith("Write one command")
    expected = {"turns": 4, "commands": 2, "malformed": 1, "submitted": 1, "agent_timed_out": 0}
    assert {name: trajectory.metrics[name] for name in expected} == expected
    assert trajectory.metrics["tests/reward"] == 1.0


async def test_an_agent_of_a_programs_own(tmp_path, monkeypatch):
    (tmp_path / "my_agent.py").write_text(
        "async def work(conversation, sandbox, task):\n"
        "    text = await conversation.ask()\n"
        "    await sandbox.run(f'echo {text} > hello.txt', timeout_s=20)\n"
    )
    monkeypatch.chdir(tmp_path)
    environment = find_environment(f"harbor:{make_task(tmp_path / 'hello')}", agent="my_agent:work")
    (scenario,) = environment.scenarios("train")
    with LlmServer(lambda body: "hello") as server:
        model = art.Model(
            name="any", project="p", inference_base_url=server.base_url, inference_api_key="test-key"
        )
        trajectory = await environment.rollout(model, scenario)
    assert trajectory.reward == 1.0 and trajectory.metrics["turns"] == 1


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("```bash\nls -la\n```", "ls -la"),
        ("```sh\na\nb\n```\n```bash\nc\n```", "a\nb"),
        ("```\nsubmit```", "submit"),
        ("```bash\nls", "ls"),
        ("```python\nprint()\n```", None),
        ("```bash\n\n```", None),
        ("ls", None),
        ("", None),
    ],
)
def test_the_command_of_a_reply(reply, command):
    assert command_of(reply) == command


def test_the_verb_says_which_tasks_teach(tmp_path):
    make_task(tmp_path / "set" / "good")
    make_task(tmp_path / "set" / "useless", {"solution/solve.sh": "#!/bin/bash\ntrue\n"})
    make_task(tmp_path / "set" / "without", {"solution/solve.sh": None})
    done = CliRunner().invoke(app, ["harbor", "check", str(tmp_path / "set")])
    lines = sorted(done.output.splitlines())
    assert done.exit_code == 1
    assert lines[0] == "good: solution 1, nothing 0.25"
    assert lines[1] == "useless: solution 0.25, nothing 0.25"
    assert lines[2].startswith("without: solution art/hello has no solution/solve.sh, nothing 0.25")
    done = CliRunner().invoke(app, ["harbor", "check", str(tmp_path / "set" / "good")])
    assert done.exit_code == 0
