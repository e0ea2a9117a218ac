"""Ledger rows for the tests of this room."""

from __future__ import annotations

import dataclasses

from art.batch.batch_types import RolloutRow, SampleRow, Untrainable
from art.wire.algorithm import AdvantageSpec, Algorithm

CENTERED = Algorithm(advantage=AdvantageSpec(kind="centered"))
GREEDY = Untrainable(reason="greedy", drawn="temperature = 0.0")
FORMED = Untrainable(reason="constraint", drawn="a regex constraint by engine 'other'")


def sample(name: str, prompt: list[int], ids: list[int], **changes: object) -> SampleRow:
    logprobs = [-0.5 * (n + 1) for n in range(len(ids))]
    row = SampleRow(sample_id=name, prompt_ids=prompt, completion_ids=ids, completion_logprobs=logprobs)
    return dataclasses.replace(row, **changes)  # type: ignore[arg-type]


def rollout(name: str, reward: float | None, *samples: SampleRow) -> RolloutRow:
    parts = {} if reward is None else {"part": reward}
    return RolloutRow(rollout=name, reward=reward, samples=samples, parts=parts)


def two_turns(name: str, reward: float | None, last: int) -> RolloutRow:
    first = sample(f"{name}.0", [5, 6], [7, 8])
    return rollout(
        name, reward, first, sample(f"{name}.1", [5, 6, 7, 8, 20], [9, last], parent_id=f"{name}.0")
    )


def attempt(name: str, reward: float | None, tokens: int, **changes: object) -> RolloutRow:
    return rollout(name, reward, sample(name, [1], list(range(10, 10 + tokens)), **changes))
