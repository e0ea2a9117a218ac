"""Coding agents as their packages install them, offline, at the address of a rollout.

`make .venv-agents/.installed` installs them. The engine's replies are written here, in Qwen's format.
All that it sampled has to be in the trajectory once, whatever the agent does with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from live import KEY, Live, run_gateway
from scripted_engine import Script, ScriptedEngine

import art
from art.rendering.library import LibraryRenderer
from art.trajectories import is_choice
from art.types import sample_id

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
INSTALLED = ROOT / ".venv-agents"
MISSING = not (INSTALLED / ".installed").exists() and not os.environ.get("ART_TEST_EVERYTHING")
DEADLINE_S = 240.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.frameworks,
    pytest.mark.skipif(MISSING, reason="no coding agents: `make .venv-agents/.installed`"),
]
TASK = "Write the word hello to the file hello.txt."
WRITE = "echo hello > hello.txt"
RESULT = "<tool_response>"
NO_SUCH_TOOL = '<tool_call>\n{"name": "no_such_tool", "arguments": {}}\n</tool_call>'
MALFORMED = (
    '<tool_call>\n{"name": "bash", "arguments": {"command": }}\n</tool_call>',
    '<tool_call>\n{"arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "',
)


def called(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@dataclass(frozen=True, kw_only=True)
class CodingAgent:
    """An agent: its command, of {url}, {model} and {task}, and the replies that do the task."""

    name: str
    command: tuple[str, ...]
    work: str
    """The reply that writes the file."""
    done: str = "Done."
    """The reply when the prompt has a result."""
    tool: str = "bash"
    """Of the agent, which requires arguments."""
    keeps_calls: bool = True
    """Whether a call of a tool that it does not have stays in its history."""
    result: str = RESULT
    """What a prompt has after the work alone."""
    variables: Mapping[str, str] = field(default_factory=dict)
    place: Path = INSTALLED
    """The environment that has it."""


def block(command: str) -> str:
    return f"THOUGHT: work\n\n```mswea_bash_command\n{command}\n```"


PROVIDER = 'model_providers.art={{name="art", base_url="{url}/v1", env_key="ART_KEY", wire_api="responses"}}'
MINI = ("bin/mini", "-m", "openai/{model}", "-t", "{task}", "-y", "--exit-immediately")
AGENTS = [
    CodingAgent(
        name="mini-swe-agent",
        command=(*MINI, "-c", "mini.yaml", "-c", "agent.step_limit=4"),
        work=called("bash", command=WRITE),
        keeps_calls=False,
        done=called("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ),
    CodingAgent(
        name="mini-swe-agent-text",
        command=(
            *(*MINI, "--model-class", "litellm_textbased"),
            *("-c", "mini_textbased.yaml", "-c", "agent.step_limit=4"),
        ),
        work=block(WRITE),
        done=block("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
        result="<returncode>",
        keeps_calls=False,
    ),
    CodingAgent(
        name="aider",
        command=(
            *(
                "aider/bin/aider",
                "--model",
                "openai/{model}",
                "--message",
                "{task}",
                "--yes-always",
                "--no-git",
            ),
            *(
                "--edit-format",
                "whole",
                "--no-check-update",
                "--no-show-model-warnings",
                "--no-show-release-notes",
            ),
            *("--no-detect-urls", "--no-pretty", "hello.txt"),
        ),
        work="hello.txt\n```\nhello\n```",
        keeps_calls=False,
    ),
    CodingAgent(
        name="codex",
        command=(
            *("node/node_modules/.bin/codex", "exec", "--skip-git-repo-check", "-m", "{model}"),
            *("-c", 'model_provider="art"', "-c", PROVIDER, "--dangerously-bypass-approvals-and-sandbox"),
            "{task}",
        ),
        tool="exec_command",
        work=called("exec_command", cmd=WRITE),
    ),
    CodingAgent(
        name="claude-code",
        command=(
            *("node/node_modules/.bin/claude", "-p", "{task}", "--model", "{model}"),
            *("--allowedTools", "Bash"),
        ),
        tool="Bash",
        work=called("Bash", command=WRITE, description="Write the file"),
        variables={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"},
    ),
]
OPENHANDS = ROOT / ".venv-openhands"
AGENTS.append(
    CodingAgent(
        name="openhands",
        command=("bin/python", str(HERE / "programs" / "run_openhands.py"), "{model}", "{task}"),
        tool="terminal",
        work=called("terminal", command=WRITE, security_risk="LOW", summary="Write the file"),
        variables={"OPENHANDS_SUPPRESS_BANNER": "1"},
        place=OPENHANDS,
    )
)
OFFLINE = {
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_CONFIGURED": "true",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "AIDER_ANALYTICS_DISABLE": "true",
}


@pytest.fixture
async def wide(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[Live]:
    """A model with room for the prompts of coding agents."""
    engine = ScriptedEngine(lambda request: Script(ids=renderer.encode("hello<|im_end|>")))
    async with run_gateway(tmp_path / "l.sqlite", engine, renderer, max_context=400_000) as running:
        yield running


async def run(agent: CodingAgent, rollout: art.rollout, folder: Path) -> tuple[int, str]:
    """Runs the agent in an empty folder with a home of its own. Returns its status and its output."""
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    given = {"url": rollout.anthropic_base_url, "model": rollout.model_name, "task": TASK}
    program, *arguments = (part.format(**given) for part in agent.command)
    if agent.place != INSTALLED and not os.environ.get("ART_TEST_EVERYTHING") and not agent.place.exists():
        pytest.skip(f"no {agent.place.name}: `make {agent.place.name}/.installed`")
    if program.startswith("node/") and not (INSTALLED / program).exists() and shutil.which("npm") is None:
        pytest.skip(f"no npm on this machine: {agent.name} is a package of npm")
    settings = [{"name": f"openai/{rollout.model_name}", "use_temperature": 1.0}]  # aider's own: greedy
    (home / ".aider.model.settings.yml").write_text(json.dumps(settings))
    key = {"ART_KEY": str(rollout.api_key)}
    process = await asyncio.create_subprocess_exec(
        str(agent.place / program),
        *arguments,
        cwd=work,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            **OFFLINE,
            **rollout.env(),
            **key,
            **agent.variables,
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode("utf-8", "replace")


async def rollout_of(
    live: Live, agent: CodingAgent, folder: Path, answer: Callable[[str], str]
) -> tuple[int, str]:
    """Runs the agent with a model that answers each prompt, and checks that all of it was recorded once."""
    renderer, engine = live.renderer, live.engine
    engine.answer = lambda request: Script(
        ids=renderer.encode(f"{answer(renderer.decode(request.prompt_ids))}<|im_end|>")
    )
    model = art.TrainableModel(name="player", project="games", base_model="tiny")
    model.inference_base_url, model.inference_api_key = f"{live.url}/v1", KEY
    async with art.rollout(model, aliases=("*",)) as rollout:
        status, output = await run(agent, rollout, folder)
    assert all(request.sampling.temperature > 0 for request in engine.requests), "it can be trained"
    samples = await live.ledger.rollout(rollout.rollout_id)
    assert samples and not rollout.forks, (rollout.forks, output[-3000:])
    assert sorted(list(one.completion_ids) for one in samples) == sorted(engine.emitted.values())
    histories = [rollout.trajectory, *rollout.trajectory.additional_histories]
    named = [
        sample_id(one) for history in histories for one in history.messages_and_choices if is_choice(one)
    ]
    assert sorted(named) == sorted(one.sample_id for one in samples)
    return status, output


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
async def test_an_agent_does_its_task(wide: Live, agent: CodingAgent, tmp_path: Path) -> None:
    status, output = await rollout_of(
        wide, agent, tmp_path, lambda prompt: agent.done if agent.result in prompt else agent.work
    )
    assert status == 0, output[-3000:]
    assert (tmp_path / "work" / "hello.txt").read_text().strip() == "hello", output[-3000:]


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
async def test_calls_that_cannot_be_read_end_without_an_error_of_ours(
    wide: Live, agent: CodingAgent, tmp_path: Path
) -> None:
    replies = iter([NO_SUCH_TOOL, called(agent.tool), *MALFORMED])
    status, output = await rollout_of(wide, agent, tmp_path, lambda prompt: next(replies, "Done."))
    assert status == 0, output[-3000:]
    prompts = [wide.renderer.decode(request.prompt_ids) for request in wide.engine.requests]
    assert ("no_such_tool" in prompts[-1] and RESULT in prompts[-1]) == agent.keeps_calls
