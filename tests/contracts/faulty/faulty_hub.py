"""An environment of verifiers 0.1 with a fault."""

from __future__ import annotations

import asyncio
from typing import Any

import verifiers as vf
from datasets import Dataset
from faulty_worlds import PROMPT, commit, reward_of


class FaultyEnv(vf.MultiTurnEnv):
    fault = ""

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        if self.fault == "hangs":
            await asyncio.Event().wait()
        return [{"role": "user", "content": commit(self.fault) or "Again."}]


def load_environment(fault: str = "") -> vf.Environment:
    async def given(completion: Any) -> Any:
        return reward_of(fault)

    text = PROMPT if fault == "prompt" else "Guess."
    rows = [{"question": f"{number}: {text}", "answer": "1"} for number in range(6)]
    world = FaultyEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[given]), max_turns=2)
    world.fault = fault
    return world
