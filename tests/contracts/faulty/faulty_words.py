"""A taskset of verifiers 0.4 with a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf
from faulty_worlds import PROMPT, commit, reward_of


class FaultyData(vf.TaskData):
    fault: str = ""


class FaultyTask(vf.Task[FaultyData]):
    @vf.reward
    async def given(self, trace: vf.Trace) -> Any:
        if self.data.fault == "hangs":
            await asyncio.Event().wait()
        commit(self.data.fault)
        return reward_of(self.data.fault)


class FaultyConfig(vf.TasksetConfig):
    fault: str = ""


class FaultyTaskset(vf.Taskset[FaultyTask, FaultyConfig]):
    def load(self) -> Iterable[FaultyTask]:
        fault = self.config.fault
        for number in range(6):
            text = PROMPT if fault == "prompt" else "Guess."
            yield FaultyTask(FaultyData(prompt=f"{number}: {text}", fault=fault), self.config.task)


__all__ = ["FaultyTaskset"]
