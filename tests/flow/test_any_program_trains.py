"""A program that knows nothing of us plays with tools through an address and a key, and is trained."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import art
from art.environments.tasks import mail
from art.trajectories import is_choice
from waiting import DEADLINE_S

# Python's standard library alone. It answers calls until there are none, or `turns` are over; asked to, it
# forgets its history on the way, and lets a sub-agent with a system prompt of its own help it.
PROGRAM = r"""
import json, os, sys, time, urllib.request

told = json.load(sys.stdin)
messages, tools = told["messages"], told["tools"]

def ask(messages, **more):
    body = {"model": "gpt-4o-mini", "messages": messages, "max_tokens": 48, **more}
    head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    for patience in range(800):
        try:
            asked = urllib.request.Request(url, json.dumps(body).encode(), head)
            return json.load(urllib.request.urlopen(asked, timeout=240))["choices"][0]["message"]
        except OSError as error:  # nobody there, cut off or not ready: as every client, it tries again
            if getattr(error, "code", 503) != 503:
                raise
            time.sleep(0.3)
    raise SystemExit("the server never came back")

for turn in range(told["turns"]):
    said = ask(messages, tools=tools)
    messages.append(said)
    for call in said.get("tool_calls") or ():
        result = {"role": "tool", "tool_call_id": call["id"], "content": "b1 atlas owner: alice"}
        messages.append(result)
    if not said.get("tool_calls"):
        messages.append({"role": "user", "content": "use a tool"})
    if turn == 1 and told.get("compact"):
        ask([{"role": "system", "content": "you sum up"}, {"role": "user", "content": "so far?"}])
        messages = [messages[0], {"role": "user", "content": "in short: b1 is about atlas"}]
json.dump(messages, sys.stdout)
"""


async def run(r: Any, messages: list[Any], turns: int, **more: Any) -> list[Any]:
    """The program in a process of its own; what it remembers at its end."""
    environment = {**os.environ, **r.env()}
    told = json.dumps({"messages": messages, "tools": mail.TOOLS, "turns": turns, **more})
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-I", "-c", PROGRAM],
        input=told,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def choices(trajectory: art.Trajectory) -> list[Any]:
    histories = [trajectory, *trajectory.additional_histories]
    return [item for one in histories for item in one.messages_and_choices if is_choice(item)]


@pytest.mark.slow
async def test_a_program_with_tools_is_trained_also_across_a_killed_server(tmp_path: Path) -> None:
    model = art.TrainableModel(name="agent", project="flow", base_model="art/nano-tools")
    opening: list[Any] = mail.environment(mail.scenario(0, 0)).opening

    async def rollout(reward: float, *, kill: bool = False, **more: Any) -> art.Trajectory:
        async with art.rollout(model, aliases=("gpt-4o-mini",)) as r:
            messages = await run(r, list(opening), 3, **more)
            if kill:
                os.kill(int(backend._server.pid or 0), signal.SIGKILL)
                await run(r, messages, 1)  # nobody but the rollout looks after the server meanwhile
        r.trajectory.reward = reward
        return r.trajectory

    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        plain = await art.TrajectoryGroup(rollout(float(n % 2)) for n in range(4))
        compacted = await art.TrajectoryGroup(rollout(float(n), compact=True) for n in range(2))
        killed = await rollout(1.0, kill=True)
        plain.trajectories.append(killed)
        result = await backend.train(model, [plain, compacted], learning_rate=1e-4)
    for trajectory in plain.trajectories[:4]:
        assert len(choices(trajectory)) == 3 and not trajectory.additional_histories
        assert trajectory.metrics["forks"] == 0 and trajectory.tools == mail.TOOLS
    assert len(choices(killed)) == 4 and not killed.additional_histories and killed.metrics["forks"] == 0
    for trajectory in compacted:
        kinds = [len(choices(art.Trajectory(**dict(h)))) for h in trajectory.additional_histories]
        assert kinds == [1, 1] and len(choices(trajectory)) == 4
    assert result.metrics["data/sheet/trained_rollouts"] == 7
    sampled = [one for trajectory in (*plain, *compacted) for one in choices(trajectory)]
    assert result.metrics["data/sheet/trained_tokens"] == sum(one.completion_tokens for one in sampled)
