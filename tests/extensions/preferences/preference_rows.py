"""Random pairs and labelled replies as rows of ids, and what the papers say of them, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from tiny_policies import VOCABULARY, causal_lm, qwen3, randomize

from art.batch.batch_types import Batch, RolloutRow, SampleRow
from art.wire.algorithm import Algorithm
from art.wire.training import LoraSpec
from art_extensions.preferences.jobs import signed_batch

LORA = LoraSpec(r=3, alpha=6)
Turns = list[tuple[list[int], list[int]]]
"""The prompt and the completion of each turn of a reply."""


@dataclass(frozen=True)
class Example:
    """A pair, or a labelled reply: its sides, each with its sign or signed weight."""

    sides: list[tuple[float, Turns]]

    def row(self, number: int) -> RolloutRow:
        samples = [
            SampleRow(
                sample_id=f"{number}.{side}.{turn}",
                prompt_ids=prompt,
                completion_ids=completion,
                completion_logprobs=(),
                given=True,
            )
            for side, (_, turns) in enumerate(self.sides)
            for turn, (prompt, completion) in enumerate(turns)
        ]
        return RolloutRow(rollout=str(number), reward=0.0, samples=samples)

    def signs(self, number: int) -> dict[str, float]:
        return {
            f"{number}.{side}.{turn}": sign
            for side, (sign, turns) in enumerate(self.sides)
            for turn in range(len(turns))
        }


def examples(seed: int, count: int, signs: Sequence[float] = (1.0, -1.0)) -> list[Example]:
    """Sides of one to three turns behind a prompt that they share, ragged."""
    rng = np.random.default_rng(seed)

    def ids(count: int) -> list[int]:
        return [int(value) for value in rng.integers(0, VOCABULARY, count)]

    found = []
    for _ in range(count):
        prompt, sides = ids(int(rng.integers(1, 9))), []
        for sign in signs:
            turns, context = list[tuple[list[int], list[int]]](), list(prompt)
            for _ in range(int(rng.integers(1, 4))):
                completion = ids(int(rng.integers(1, 6)))
                turns.append((list(context), completion))
                context += completion + ids(2)
            sides.append((sign, turns))
        found.append(Example(sides=sides))
    return found


def batch_of(found: Sequence[Example], algorithm: Algorithm) -> Batch:
    rows = [one.row(number) for number, one in enumerate(found)]
    signs = {name: sign for number, one in enumerate(found) for name, sign in one.signs(number).items()}
    return signed_batch(rows, signs, algorithm)


class PlainModel:
    """The stock model with PEFT's own adapter, one row at a time: nothing of the tree's code."""

    def __init__(self, seed: int = 0) -> None:
        self.model = get_peft_model(
            causal_lm(qwen3(), "sdpa", torch.float64),
            LoraConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules=LORA.targets, task_type="CAUSAL_LM"),
        )
        self.model.eval()
        self.trained = {
            name.replace(".default.", "."): p for name, p in self.model.named_parameters() if "lora_" in name
        }
        randomize(self.trained, seed)

    def logprob(self, turns: Turns) -> torch.Tensor:
        """The sum over the tokens of all completions."""
        total = torch.zeros((), dtype=torch.float64)
        for prompt, completion in turns:
            ids = torch.tensor(prompt + completion)
            logprobs = torch.log_softmax(self.model(input_ids=ids[None, :-1]).logits[0], -1)
            total = total + logprobs.gather(1, ids[1:, None])[len(prompt) - 1 :].sum()
        return total

    def log_ratio(self, turns: Turns) -> torch.Tensor:
        with torch.no_grad(), self.model.disable_adapter():
            reference = self.logprob(turns)
        return self.logprob(turns) - reference

    def gradients(self, loss: torch.Tensor) -> dict[str, torch.Tensor]:
        loss.backward()
        return {name: p.grad for name, p in self.trained.items() if p.grad is not None}


def length(turns: Turns) -> int:
    return sum(len(completion) for _, completion in turns)
