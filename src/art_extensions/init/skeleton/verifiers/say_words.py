"""The taskset: its tasks, and the reward of each. Put your own here."""

from __future__ import annotations

from collections.abc import Iterable

import verifiers.v1 as vf

WORDS = ("yes", "no", "maybe")


class WordData(vf.TaskData):
    word: str = ""


class WordTask(vf.Task[WordData]):
    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        said = trace.last_reply
        return 0.5 * (said in WORDS) + 0.5 * (said == self.data.word)


class WordTaskset(vf.Taskset[WordTask]):
    def load(self) -> Iterable[WordTask]:
        for word in WORDS:
            for number in range(10):
                prompt = f"{number + 1}: respond with {word}"
                yield WordTask(WordData(prompt=prompt, word=word), self.config.task)


__all__ = ["WordTaskset"]
