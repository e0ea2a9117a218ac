"""Environments of OpenEnv, run where its client is installed: prints JSON.

python openenv_rollouts.py BASE_URL KEY WORLDS LOST ALONE STALLED    the model's endpoint, the server of
                                                                     openenv_worlds.py, and three ways to it
                                                                     that break
python openenv_rollouts.py hold WORLDS             has the only session of /single until it is killed
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any
from unittest.mock import patch

from environment_program import model_of
from openenv.core.generic_client import GenericEnvClient

import art
from art.environments.adapters.environment import NamedEnvironment, RolloutConversation
from art.environments.adapters.registry import find_environment
from art.wire.rollouts import SAMPLE_FIELD


async def played(model: art.Model, name: str, **options: Any) -> dict[str, Any]:
    environment = find_environment(name, **options)
    one = await environment.rollout(model, environment.scenarios("train")[0], seed=1)
    return {
        "reward": one.reward,
        "metrics": one.metrics,
        "said": [message["content"] for message in one.messages()],
    }


async def earned(model: art.Model, name: str) -> dict[str, Any]:
    """Plays a rollout whose turns are rewarded, by replies with the ids that a server of ours gives them."""
    asked = RolloutConversation.ask

    async def ask(conversation: RolloutConversation) -> str:
        text = await asked(conversation)
        setattr(conversation.trajectory.messages_and_choices[-1], SAMPLE_FIELD, f"turn {conversation.turns}")
        return text

    environment = find_environment(name, turn_rewards=True)
    with patch.object(RolloutConversation, "ask", ask):
        one = await environment.rollout(model, environment.scenarios("train")[0])
    return {"reward": one.reward, "turns": one.turn_rewards}


async def failed(model: art.Model, name: str, **options: Any) -> str:
    try:
        return str(await played(model, name, **options))
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return f"{type(error).__name__}: {error}"


async def crowd(model: art.Model, environment: NamedEnvironment, size: int) -> list[float]:
    """Returns the rewards of rollouts at once, one of which is cancelled."""
    scenarios = environment.scenarios("train")
    jobs = [asyncio.create_task(environment.rollout(model, one)) for one in scenarios[:size]]
    await asyncio.sleep(0)
    jobs[0].cancel()
    await asyncio.wait(jobs)
    return [float(job.result().reward) for job in jobs if not job.cancelled()]


async def occupied(model: art.Model, worlds: str) -> str:
    """Returns how a rollout fails while another program has the only session."""
    async with GenericEnvClient(f"{worlds}/single") as other:
        await other.reset()
        return await failed(model, f"openenv:{worlds}/single", deadline_s=1.5)


async def hold(worlds: str) -> None:
    """Says so when it has the session."""
    other = GenericEnvClient(f"{worlds}/single")
    await other.reset()
    print("held", flush=True)
    await asyncio.Event().wait()


async def killed(model: art.Model, worlds: str) -> dict[str, Any]:
    """Returns a rollout in the session of a program that was killed in its episode."""
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", __file__, "hold", worlds), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert holder.stdout is not None and await holder.stdout.readline() == b"held\n"
    finally:
        holder.kill()
        await holder.wait()
    return await played(model, f"openenv:{worlds}/single", deadline_s=20.0)


async def half_open(model: art.Model, way: str) -> dict[str, Any]:
    """Returns what is left of a group whose first connection is lost without a word."""
    environment = find_environment(f"openenv:{way}/guess", deadline_s=20.0)
    scenario = environment.scenarios("train")[0]
    group = art.TrajectoryGroup([environment.rollout(model, scenario) for _ in range(3)])
    (done,) = await art.gather_trajectory_groups([group], pbar_desc=None, max_exceptions=1)
    return {
        "rewards": [one.reward for one in done.trajectories],
        "failures": [f"{one.type}: {one.message}" for one in done.exceptions],
    }


async def broken(model: art.Model, way: str, deadline_s: float) -> dict[str, Any]:
    """Returns how a rollout in the only session of a server fails, and the one that is next there."""
    return {
        "failed": await failed(model, f"openenv:{way}/single", deadline_s=deadline_s),
        "next": await played(model, f"openenv:{way}/single", deadline_s=20.0),
    }


async def main(base_url: str, key: str, worlds: str, lost: str, alone: str, stalled: str) -> None:
    def player(name: str) -> art.Model:
        return model_of(name, base_url, key)

    def at(world: str) -> str:
        return f"openenv:{worlds}/{world}"

    right = player("right")
    told = {
        "guess": await played(right, at("guess"), train=3, val=1),
        "turns": await played(player("wrong"), at("guess"), max_turns=2),
        "reset": await played(player("wrong"), at("guess"), reset={"most": 1}),
        "number": await played(player("numbers"), at("number"), action="number"),
        "shown": await played(player("numbers"), at("number"), action="number", observation="board"),
        "plan": await played(player("plans"), at("plan")),
        "crowd": await crowd(right, find_environment(at("single")), 6),
        "occupied": await occupied(right, worlds),
        "killed": await killed(right, worlds),
        "lost": await half_open(player("lost"), lost),
        "alone": await broken(player("alone"), alone, 20.0),
        "stalled": await broken(player("stalled"), stalled, 4.0),
        "opening": await played(right, at("opening"), observation="hint"),
        "drops": await failed(player("wrong"), at("drops"), max_turns=3),
        "calls": await played(player("callers"), at("calls"), max_turns=4, tools=False),
        "offered": await played(player("guessers"), at("calls"), max_turns=3),
        "rewarded": await played(player("guessers"), at("rewarded")),
        "silent": await played(player("right"), at("rewarded")),
        "steps": await earned(player("wrong"), at("guess")),
        "calls_earn": await earned(player("guessers"), at("rewarded")),
        "acts": await played(player("actors"), at("plan"), tools=True, max_turns=5),
        "fails": await failed(right, at("fails")),
        "hangs": await failed(right, at("hangs"), deadline_s=1.0),
        "huge": await failed(right, at("huge")),
        "tools": await failed(right, at("tools")),
        "no_tools": await failed(right, at("tools"), tools=False),
        "both": await failed(right, at("plan"), tools=True, action="first"),
        "other": await failed(right, at("other")),
        "nobody": await failed(right, "openenv:http://127.0.0.1:9/"),
        "address": await failed(right, "openenv:echo"),
        "action": await failed(right, at("guess"), action="message"),
        "observation": await failed(right, at("guess"), observation="board"),
        "max_turns": await failed(right, at("guess"), max_turns=0),
        "nan": await failed(right, at("faulty"), reset={"fault": "nan"}),
        "word": await failed(right, at("faulty"), reset={"fault": "word"}),
        "floods": await failed(right, at("faulty"), reset={"fault": "floods"}),
        "prompt": await failed(right, at("faulty"), reset={"fault": "prompt"}),
        "dies": await failed(right, at("dies"), deadline_s=20.0),  # the last: nothing answers after it
    }
    print(json.dumps(told))


if __name__ == "__main__":
    logging.disable()
    asyncio.run(hold(sys.argv[2]) if sys.argv[1] == "hold" else main(*sys.argv[1:]))
