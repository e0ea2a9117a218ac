"""Gradients of many adapters on one base: in one forward and backward pass, or one adapter after the other.

    python -m bench.gradient.adapters --base art/nano-words --adapters 1 4 16 64

Adapters of ranks from 4 to 64, each with a batch of its own: completions of 32 tokens behind a prompt of 15,
with the logprobs that the adapter gives them. Both ways alternate on the same open adapters; the ratio is the
median of pairs. `apart` is the largest relative error of an adapter's gradient in a shared pass, against its
pass alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from art.batch.algorithms import resolve
from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.engine.base_models import local_folder
from art.process.resources import keep_freed_memory
from art.training.policy import load_policy
from art.training.trainer import AskedBatch, Trainer
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest
from bench.rows import Row, write_rows

RANKS = (4, 8, 16, 32, 64)
PROMPT, COMPLETION = 15, 32
ALGORITHM = resolve("importance_sampling")


def batch_of(trainer: Trainer, name: str, seed: int, rollouts: int) -> Batch:
    dice, vocabulary = np.random.default_rng(seed), trainer.policy.head.vocab_size
    prompt = dice.integers(0, vocabulary, PROMPT).tolist()
    completions = [dice.integers(0, vocabulary, COMPLETION).tolist() for _ in range(rollouts)]
    logprobs = trainer.score(name, [prompt + completion for completion in completions])
    made = []
    for number, (completion, scored) in enumerate(zip(completions, logprobs, strict=True)):
        row = SampleRow(
            sample_id=f"{seed}.{number}",
            prompt_ids=prompt,
            completion_ids=completion,
            completion_logprobs=scored[PROMPT - 1 :],
        )
        made.append(RolloutRow(rollout=row.sample_id, reward=float(number % 2), samples=[row]))
    return build_batch([GroupRow(rollouts=made)], algorithm=ALGORITHM)


class Adapters:
    """Open adapters, and the two ways to their gradients."""

    def __init__(self, trainer: Trainer, count: int, rollouts: int) -> None:
        self.trainer, self._update = trainer, 0
        self._batches: dict[str, Batch] = {}
        for number in range(count):
            name = f"m{number}"
            trainer.open(name, LoraSpec(r=RANKS[number % len(RANKS)], alpha=32), seed=number)
            with torch.no_grad():
                for parameter in trainer.parameters(name).values():
                    parameter.add_(torch.randn_like(parameter) * 0.01)
            self._batches[name] = batch_of(trainer, name, number, rollouts)

    def shared(self) -> None:
        self.trainer.train_together(self._asked())

    def in_turns(self) -> None:
        for batch in self._asked():
            self.trainer.train(*batch)

    def gradients(self, compute: Callable[[], None]) -> list[torch.Tensor]:
        self._update = 0
        compute()
        found = [self.trainer.parameters(name).values() for name in self._batches]
        return [torch.cat([one.grad.flatten() for one in own if one.grad is not None]) for own in found]

    def close(self) -> None:
        for name in self._batches:
            self.trainer.close(name)

    def _asked(self) -> list[AskedBatch]:
        asked = []
        for name, batch in self._batches.items():
            request = TrainRequest(
                model=name,
                step=0,
                update=self._update,
                gradient="add",
                algorithm=ALGORITHM,
                optimizer=OptimizerSpec(learning_rate=None),
                normalizer=1.0,
                sampling=list(batch.sampling),
            )
            asked.append(AskedBatch(batch.tree, batch.entries, request, lambda done, total: None))
        self._update += 1
        return asked


def seconds(compute: Callable[[], None]) -> float:
    begin = time.perf_counter()
    compute()
    return time.perf_counter() - begin


def measure(trainer: Trainer, base: str, count: int, rollouts: int, repetitions: int) -> list[Row]:
    adapters = Adapters(trainer, count, rollouts)
    try:
        alone = adapters.gradients(adapters.in_turns)
        shared = adapters.gradients(adapters.shared) if count > 1 else alone
        apart = max(
            float((one - other).norm() / other.norm()) for one, other in zip(shared, alone, strict=True)
        )
        compute = adapters.shared if count > 1 else adapters.in_turns
        pairs = [(seconds(compute), seconds(adapters.in_turns)) for _ in range(repetitions)]
    finally:
        adapters.close()
    ours, peer = (count / median(one) for one in zip(*pairs, strict=True))
    name = f"{base}: {count} adapters, {rollouts} rows each"
    ratio = median(peer / own for own, peer in pairs)
    return [
        Row(name=name, ours=ours, peer=peer, unit="batches/s", ratio=ratio),
        Row(name=f"{name}: apart", ours=apart, unit="relative", goal=1e-6, at_most=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gradient.adapters",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--base", action="append", metavar="NAME", help="a base model; may be repeated")
    parser.add_argument("--adapters", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--rows", type=int, nargs="*", default=[2, 4, 16], help="completions of a batch")
    parser.add_argument("--repetitions", type=int, default=7)
    given = parser.parse_args()
    keep_freed_memory()
    rows = []
    for base in given.base or ["art/nano-words"]:
        trainer = Trainer(load_policy(local_folder(base), name=base))
        for count in given.adapters:
            for size in given.rows:
                rows += measure(trainer, base, count, size, given.repetitions)
    write_rows("adapters", rows)


if __name__ == "__main__":
    main()
