"""Batches in the shapes that agents leave behind: synthetic ids, seeded, lengths with a long tail.

Each corpus is a function `seed -> list[GroupRow]`, as the trainer receives them. What differs is what their
rollouts share; ids themselves are random, so nothing is shared by accident.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from art.batch.batch_types import GroupRow, RolloutRow, SampleRow

VOCABULARY = 512
Corpus = Callable[[int], list[GroupRow]]
_Ids = npt.NDArray[np.int32]


class Writer:
    """Random ids, and rows made of them. `vocabulary` is that of the model which will read them."""

    def __init__(self, seed: int, vocabulary: int = VOCABULARY) -> None:
        self._rng = np.random.default_rng(seed)
        self._vocabulary = vocabulary
        self._samples = 0

    def ids(self, count: int) -> _Ids:
        return self._rng.integers(0, self._vocabulary, count, dtype=np.int32)

    def about(self, median: float, spread: float = 0.5, most: float = 6.0) -> int:
        """A length: log-normal around its median, at most `most` times it."""
        return max(4, round(median * min(most, float(np.exp(spread * self._rng.normal())))))

    def counts(self, least: int, most: int, size: int) -> list[int]:
        return [int(count) for count in self._rng.integers(least, most + 1, size)]

    def sample(self, prompt: _Ids, completion: _Ids) -> SampleRow:
        self._samples += 1
        return SampleRow(
            sample_id=f"s{self._samples}",
            prompt_ids=prompt,  # type: ignore[arg-type]  # an array is read as the list it stands for
            completion_ids=completion,  # type: ignore[arg-type]
            completion_logprobs=np.log(self._rng.uniform(0.05, 1.0, len(completion))),  # type: ignore[arg-type]
        )

    def rollout(self, samples: list[SampleRow]) -> RolloutRow:
        return RolloutRow(rollout=f"r{self._samples}", reward=float(self._rng.normal()), samples=samples)

    def turns(self, prompt: _Ids, count: int, sampled: float, observed: float) -> RolloutRow:
        """A conversation whose prompts extend each other: sampled ids, then observed ones, `count` times."""
        context, samples = prompt, []
        for _ in range(count):
            completion = self.ids(self.about(sampled))
            samples.append(self.sample(context, completion))
            context = np.concatenate([context, completion, self.ids(self.about(observed, 0.7))])
        return self.rollout(samples)


def single_turn(seed: int = 0, *, answer: int = 64, groups: int = 16) -> list[GroupRow]:
    """Groups of 8 answers to one prompt, the prompt four times as long as an answer."""
    writer = Writer(seed)
    rows = []
    for _ in range(groups):
        prompt = writer.ids(writer.about(4 * answer, 0.4))
        answers = [writer.ids(writer.about(answer)) for _ in range(8)]
        rows.append(GroupRow(rollouts=[writer.rollout([writer.sample(prompt, one)]) for one in answers]))
    return rows


def tool_use(seed: int = 0, *, groups: int = 16) -> list[GroupRow]:
    """16 groups of 8 rollouts of up to 6 turns: 40 sampled ids and a tool's 60 behind a prompt of 200."""
    writer = Writer(seed)
    rows = []
    for _ in range(groups):
        prompt = writer.ids(writer.about(200, 0.4))
        counts = writer.counts(4, 6, 8)
        rows.append(GroupRow(rollouts=[writer.turns(prompt, count, 40, 60) for count in counts]))
    return rows


def long_system_prompt(seed: int = 0, *, groups: int = 16, system: int = 1200) -> list[GroupRow]:
    """16 groups of 8 rollouts of up to 15 turns, one system prompt of 1,200 ids before all of them."""
    writer = Writer(seed)
    shared = writer.ids(system)
    rows = []
    for _ in range(groups):
        prompt = np.concatenate([shared, writer.ids(writer.about(80))])
        counts = writer.counts(9, 15, 8)
        rows.append(GroupRow(rollouts=[writer.turns(prompt, count, 45, 70) for count in counts]))
    return rows


def long_prompt(seed: int = 0, *, groups: int = 4, prompt: int = 8192) -> list[GroupRow]:
    """Groups of 16 answers of about 400 ids to a prompt of 8,192."""
    writer = Writer(seed)
    rows = []
    for _ in range(groups):
        shared = writer.ids(prompt)
        answers = [writer.ids(writer.about(400)) for _ in range(16)]
        rows.append(GroupRow(rollouts=[writer.rollout([writer.sample(shared, one)]) for one in answers]))
    return rows


def rerendered(seed: int = 0, *, groups: int = 16) -> list[GroupRow]:
    """Six turns whose thinking is stripped when the history is rendered again: a fork at each turn."""
    writer = Writer(seed)
    rows = []
    for _ in range(groups):
        prompt = writer.ids(writer.about(200, 0.4))
        rollouts = []
        for _ in range(8):
            context, samples = prompt, []
            for _ in range(6):
                thinking, answer = writer.ids(writer.about(80)), writer.ids(writer.about(30))
                samples.append(writer.sample(context, np.concatenate([thinking, answer])))
                context = np.concatenate([context, answer, writer.ids(writer.about(60, 0.7))])
            rollouts.append(writer.rollout(samples))
        rows.append(GroupRow(rollouts=rollouts))
    return rows


def nothing_shared(seed: int = 0, *, groups: int = 16) -> list[GroupRow]:
    """Every row has a prompt of its own, about 256 ids, and an answer of about 128."""
    writer = Writer(seed)
    rows = []
    for _ in range(groups):
        pairs = [(writer.ids(writer.about(256)), writer.ids(writer.about(128))) for _ in range(8)]
        rows.append(GroupRow(rollouts=[writer.rollout([writer.sample(*pair)]) for pair in pairs]))
    return rows


CORPORA: dict[str, Corpus] = {
    "single turn": single_turn,
    "6-turn tool use": tool_use,
    "15 turns, one long system prompt": long_system_prompt,
    "groups of 16, prompt of 8k": long_prompt,
    "re-rendered at each turn": rerendered,
    "nothing shared": nothing_shared,
}
