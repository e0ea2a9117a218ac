"""Agents of other people's frameworks, unmodified: what they say to a rollout's address becomes a trajectory.

Each program runs with an environment that `make test-all` makes and knows nothing of ART: an address, a key
and a model's name, given as its SDK reads them. The nano model answers greedily, so a conversation
that is passed on exactly ends with the right name.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

import art
from art.tasks import mail
from art.types import sample_id

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-frameworks" / "bin" / "python"
DEADLINE_S = 240.0

MISSING = not PYTHON.exists() and not os.environ.get("ART_TEST_EVERYTHING")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.frameworks,
    pytest.mark.skipif(MISSING, reason=f"no {PYTHON.parents[1].name}: `make .venv-frameworks/.installed`"),
]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program and what it is known to do."""

    name: str
    right: bool = True
    """Whether it ends with the right name: this model loses its way where history is written anew."""
    forks: frozenset[str] = field(default_factory=frozenset)
    """Why its conversation may not extend its ids: calls, or texts between them, are written anew."""

    @property
    def command(self) -> list[str]:
        if self.name == "node":
            return ["node", str(HERE / "node" / "mail.mjs")]
        return [str(PYTHON), str(HERE / "programs" / f"{self.name}.py")]


PROGRAMS = [
    Program(name="openai_sync"),
    Program(name="openai_async"),
    Program(name="openai_stream"),
    Program(name="openai_responses"),
    Program(name="langgraph_agent"),
    Program(name="openai_agents"),
    Program(name="pydantic_agent"),
    Program(name="smol_agent", right=False, forks=frozenset({"unknown_history", "history_edited"})),
    Program(name="litellm_agent"),
    Program(name="anthropic_agent"),
    Program(name="node"),
    Program(name="curl_agent"),
]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[art.LocalBackend]:
    with art.LocalBackend(path=tmp_path_factory.mktemp("art")) as backend:
        yield backend


@pytest.fixture
async def model(backend: art.LocalBackend) -> art.TrainableModel:
    model = art.TrainableModel(name="agent", project="frameworks", base_model="art/nano-tools")
    await model.register(backend)
    return model


def written(scenario: mail.Scenario, path: Path) -> Path:
    """The scenario as the programs read it."""
    mails = [
        {"id": one.id, "project": one.project, "role": one.role, "name": one.name} for one in scenario.inbox
    ]
    path.write_text(json.dumps({"question": scenario.question, "mails": mails}), encoding="utf-8")
    return path


async def run(program: Program, environment: dict[str, str], command: list[str] | None = None) -> str | None:
    """What the program answered."""
    process = await asyncio.create_subprocess_exec(
        *(command or program.command),
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, err.decode()[-3000:]
    answer: str | None = json.loads(out.splitlines()[-1])["answer"]
    return answer


async def samples_of(model: art.TrainableModel, rollout_id: str) -> dict[str, Any]:
    """What the server's ledger has of a rollout."""
    headers = {"authorization": f"Bearer {model.inference_api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=240) as http:
        reply = await http.get(f"{model.inference_base_url}/rollouts/{rollout_id}")
    reply.raise_for_status()
    told: dict[str, Any] = reply.json()
    return told


def turns(history: art.Trajectory | art.History) -> list[Any]:
    return [item for item in history.messages_and_choices if not isinstance(item, dict)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_what_an_agent_says_is_what_is_trained(
    backend: art.LocalBackend, model: art.TrainableModel, program: Program, tmp_path: Path
) -> None:
    if program.name == "node" and shutil.which("npm") is None:
        pytest.skip("no npm on this machine: Node.js is needed for this program alone")
    scenario = mail.scenario(7, 0)
    inbox = written(scenario, tmp_path / "inbox.json")

    async def attempt(reward: float) -> art.Trajectory:
        async with art.rollout(model) as rollout:
            answer = await run(
                program, {**rollout.env(), "INBOX": str(inbox), "MODEL": model.get_inference_name()}
            )
        trajectory = rollout.trajectory
        if program.right:
            assert answer == scenario.wanted.name
        told = await samples_of(model, rollout.rollout_id)
        assert told["forks"].keys() <= program.forks and bool(told["forks"]) == bool(program.forks)
        check_complete(trajectory, told, one_history=not program.forks)
        trajectory.reward = reward
        return trajectory

    group = art.TrajectoryGroup([await attempt(0.0), await attempt(1.0)])
    result = await backend.train(model, [group], learning_rate=1e-6)
    sampled = sum(choice.model_extra["completion_tokens"] for choice in all_turns(group))
    assert result.metrics["data/sheet/trained_tokens"] == sampled
    assert result.metrics["data/sheet/trained_rollouts"] == 2


def all_turns(group: art.TrajectoryGroup) -> list[Any]:
    return [
        choice
        for trajectory in group.trajectories
        for history in (trajectory, *trajectory.additional_histories)
        for choice in turns(history)
    ]


def check_complete(trajectory: art.Trajectory, told: dict[str, Any], *, one_history: bool) -> None:
    """Every sample of the rollout is a turn, in its order; each prompt is the one before with its reply."""
    samples = {sample["sample_id"]: sample for sample in told["samples"]}
    histories = [trajectory, *trajectory.additional_histories]
    named = [choice.model_extra["sample_id"] for history in histories for choice in turns(history)]
    assert sorted(named) == sorted(samples) and len(named) >= 3
    if not one_history:
        return
    assert not trajectory.additional_histories and trajectory.tools
    roles = [
        item["role"] if isinstance(item, dict) else "sampled" for item in trajectory.messages_and_choices
    ]
    assert roles[:4] == ["system", "user", "sampled", "tool"] and roles[-1] == "sampled"
    for before, after in pairwise(samples[name] for name in named):
        whole = [*before["prompt_ids"], *before["completion_ids"]]
        assert after["parent_id"] == before["sample_id"] and after["prompt_ids"][: len(whole)] == whole


CAPTURED = [
    program for program in PROGRAMS if program.name not in ("node", "curl_agent")
]  # which are no Python programs


@pytest.mark.parametrize("program", CAPTURED, ids=lambda program: program.name)
async def test_what_is_recorded_in_the_program_is_what_the_server_knows(
    model: art.TrainableModel, program: Program, tmp_path: Path
) -> None:
    inbox, found = written(mail.scenario(7, 0), tmp_path / "inbox.json"), tmp_path / "found.json"
    command = [str(PYTHON), str(HERE / "programs" / "captured.py"), program.name, str(found)]
    async with art.rollout(model) as rollout:
        source = {"PYTHONPATH": str(Path(art.__file__).parents[1])}
        asked = {"INBOX": str(inbox), "MODEL": model.get_inference_name()}
        await run(program, {**rollout.env(), **source, **asked}, command)
    recorded = json.loads(found.read_text())
    histories = [rollout.trajectory, *rollout.trajectory.additional_histories]
    assert recorded["turns"] == [
        [sample_id(item) or item["role"] for item in history.messages_and_choices] for history in histories
    ]
    names = [name for turn in recorded["turns"] for name in turn]
    assert len(recorded["dialects"]) == len([name for name in names if "_" in name])
