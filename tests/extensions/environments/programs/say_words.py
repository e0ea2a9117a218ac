"""A taskset of verifiers 0.4: say the word that is asked for."""

from collections.abc import Iterable

import verifiers.v1 as vf

WORDS = ("yes", "no", "maybe", "blue", "red", "green")


class WordData(vf.TaskData):
    word: str = ""


class WordTask(vf.Task[WordData]):
    @vf.reward(weight=2.0)
    async def exact(self, trace: vf.Trace) -> float:
        if self.data.word == "red":
            raise ValueError("red is not scored")
        return 0.5 + 0.5 * float(self.data.word in trace.last_reply)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class WordTaskset(vf.Taskset[WordTask]):
    def load(self) -> Iterable[WordTask]:
        for word in WORDS:
            yield WordTask(
                WordData(prompt=f"respond with {word}, {word} or {word}", word=word), self.config.task
            )


__all__ = ["WordTaskset"]
