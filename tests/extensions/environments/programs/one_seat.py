"""A taskset of verifiers 0.4 with an environment class of its own and one agent.

The class asks twice, and tells its tasks by their settings how often it was started.
"""

from collections.abc import Iterable

import verifiers.v1 as vf

WORDS = ("yes", "no", "maybe", "blue", "red", "green")


class SeatTaskConfig(vf.TaskConfig):
    started: int = 0
    """How often the environment has started."""


class SeatConfig(vf.TasksetConfig):
    task: SeatTaskConfig = SeatTaskConfig()
    image: str | None = None
    """The container image of each task."""
    fails_at: str = ""
    """The word at which an episode fails after its first reply."""


class SeatData(vf.TaskData):
    word: str = ""


class SeatTask(vf.Task[SeatData, vf.State, SeatTaskConfig]):
    @vf.metric
    async def starts(self, trace: vf.Trace) -> float:
        return float(self.config.started)


class SeatTaskset(vf.Taskset[SeatTask, SeatConfig]):
    def load(self) -> Iterable[SeatTask]:
        for word in WORDS:
            yield SeatTask(SeatData(prompt=None, word=word, image=self.config.image), self.config.task)


class SeatEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(
        harness={"id": "null"}, model="another", sampling={"temperature": 0.0, "stop": ["#"]}
    )


class SeatEnv(vf.Env[SeatEnvConfig]):
    async def start(self) -> None:
        self.taskset.config.task.started += 1

    async def stop(self) -> None:
        self.taskset.config.task.started = -self.taskset.config.task.started

    async def run(self, task: SeatTask, agents: vf.Agents) -> None:
        word = task.data.word
        async with agents.player.interaction(task) as talk:
            first = await talk.turn(f"respond with {word}, {word} or {word}")
            if word == self.taskset.config.fails_at:
                raise ValueError(f"{word} is not played on")
            second = await talk.turn(f"just respond with {word} or no")
        talk.trace.record_reward("first", float(word in first.last_reply))
        talk.trace.record_reward("second", float(word in second.last_reply), 0.5)


__all__ = ["SeatEnv", "SeatTaskset"]
