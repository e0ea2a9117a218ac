"""A taskset of verifiers 0.4 with two agents: the first says a word, the second should say it again."""

from collections.abc import Iterable

import verifiers.v1 as vf

WORDS = ("yes", "no", "maybe", "blue")


class EchoData(vf.TaskData):
    word: str = ""


class EchoTask(vf.Task[EchoData]):
    pass


class EchoTaskset(vf.Taskset[EchoTask]):
    def load(self) -> Iterable[EchoTask]:
        for word in WORDS:
            yield EchoTask(
                EchoData(prompt=f"respond with {word}, {word} or {word}", word=word), self.config.task
            )


class EchoConfig(vf.EnvConfig):
    teller: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    echo: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})


class EchoEnv(vf.Env[EchoConfig]):
    async def run(self, task: EchoTask, agents: vf.Agents) -> None:
        told = await agents.teller.run(task)
        said = told.last_reply or ""
        again = EchoTask(
            EchoData(prompt=f"just respond with {said} or no", word=said), self.taskset.config.task
        )
        await agents.echo.run(again)

    async def finalize(self, task: EchoTask, episode: vf.Episode) -> None:
        teller, echo = episode.traces
        teller.record_reward("word", float(task.data.word in (teller.last_reply or "")))
        echo.record_reward("same", 0.25 + 0.5 * float((teller.last_reply or "") == (echo.last_reply or "")))


__all__ = ["EchoEnv", "EchoTaskset"]
