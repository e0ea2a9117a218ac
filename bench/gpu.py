"""Trainer throughput on a GPU: Qwen3 shapes with random weights, LoRA of rank 16, in bfloat16.

Forward, backward and optimizer step through the trainer's own `train_step`:

    one row of 16k tokens, all of them trained      against the best open trainer's published tokens/s (H100)
    a group of 16 under one 8k prompt, as a tree   against the same samples as plain rows

    python -m bench gpu                            both shapes; needs a CUDA device
    python -m bench.gpu --shape tiny --device cpu  the same code on a small shape, compared with nothing
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.training.first_pass import References
from art.training.losses.registry import make_loss
from art.training.optimizer import make_optimizer
from art.training.policy import Policy
from art.training.step import Learner, train_step
from art.training.weights import Weights
from art.wire.algorithm import AdvantageSpec, Algorithm
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest
from bench.rows import Row, write_rows

REPETITIONS = 3
ALGORITHM = Algorithm(advantage=AdvantageSpec(kind="reward"))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Qwen3 configuration, the row to fill, and what the best open trainer publishes for it."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = True
    row: int = 16384
    published: float | None = None
    goal: float | None = None


SHAPES = {
    "tiny": Shape(
        hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=128, vocabulary=512, row=512
    ),
    "qwen3-0.6b": Shape(
        hidden=1024,
        layers=28,
        heads=16,
        kv_heads=8,
        head_dim=128,
        intermediate=3072,
        vocabulary=151936,
        published=13_300.0,
        goal=35_000.0,
    ),
    "qwen3-4b": Shape(
        hidden=2560,
        layers=36,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate=9728,
        vocabulary=151936,
        published=6_230.0,
        goal=12_900.0,
    ),
}


def learner(shape: Shape, device: str) -> Learner:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=2 * shape.row,
        tie_word_embeddings=shape.tied,
    )
    with torch.device(device):
        causal_lm = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    policy = Policy(causal_lm, name="bench")
    policy.checkpoint_activations = True  # as the published figures were taken
    weights = Weights(policy)
    weights.attach("a1", LoraSpec(), seed=0)
    parameters = list(weights.parameters("a1").values())
    return Learner(
        policy=policy,
        optimizer=make_optimizer(parameters, OptimizerSpec(learning_rate=1e-4)),
        loss=make_loss(ALGORITHM),
        references=References(policy, weights, "a1"),
    )


def rollout(name: str, prompt: list[int], answer: list[int], reward: float) -> RolloutRow:
    sample = SampleRow(
        sample_id=name, prompt_ids=prompt, completion_ids=answer, completion_logprobs=[-1.0] * len(answer)
    )
    return RolloutRow(rollout=name, reward=reward, samples=[sample])


def dense_row(shape: Shape) -> Batch:
    """One row whose every token but the first is trained."""
    ids = np.random.default_rng(0).integers(0, shape.vocabulary, shape.row).tolist()
    return build_batch([GroupRow(rollouts=[rollout("row", ids[:1], ids[1:], 1.0)])], algorithm=ALGORITHM)


def group(shape: Shape) -> tuple[Batch, list[Batch]]:
    """16 answers under a prompt of half a row: as one batch, and each answer as a batch of its own."""
    rng = np.random.default_rng(1)
    prompt = rng.integers(0, shape.vocabulary, shape.row // 2).tolist()
    answers = [rng.integers(0, shape.vocabulary, shape.row // 32).tolist() for _ in range(16)]
    rollouts = [
        rollout(f"r{number}", prompt, answer, float(number % 2 * 2 - 1))
        for number, answer in enumerate(answers)
    ]
    alone = [build_batch([GroupRow(rollouts=[one])], algorithm=ALGORITHM) for one in rollouts]
    return build_batch([GroupRow(rollouts=rollouts)], algorithm=ALGORITHM), alone


def seconds(learner: Learner, batches: list[Batch], budget: int) -> float:
    """Median time of training on all of them; the first repetition warms up and is not counted."""
    times = []
    for _ in range(REPETITIONS + 1):
        _wait(learner)
        begin = time.perf_counter()
        for batch in batches:
            request = TrainRequest(
                model="bench",
                step=0,
                algorithm=ALGORITHM,
                optimizer=OptimizerSpec(learning_rate=1e-4),
                normalizer=batch.normalizer,
            )
            train_step(learner, batch.tree, batch.entries, request, learning_rate=1e-4, token_budget=budget)
        _wait(learner)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def measure(name: str, device: str) -> list[Row]:
    shape = SHAPES[name]
    made = learner(shape, device)
    row = dense_row(shape)
    _reset_peak(device)
    speed = len(row.tree) / seconds(made, [row], shape.row)
    peak = _peak_gib(device)
    published = shape.published
    rows = [
        Row(
            name=f"{name}: one row of {shape.row} tokens, kernel {made.policy.kernel}",
            ours=speed,
            peer=published,
            unit="tokens/s",
            ratio=None if published is None else speed / published,
            goal=shape.goal if published is None or shape.goal is None else shape.goal / published,
        ),
        Row(name=f"{name}: peak memory of that row", ours=peak, unit="GiB"),
    ]
    tree, alone = group(shape)
    _reset_peak(device)
    tree_s = seconds(made, [tree], shape.row)
    tree_gib = _peak_gib(device)
    _reset_peak(device)
    rows_s = seconds(made, alone, shape.row)
    return [
        *rows,
        Row(
            name=f"{name}: a group of 16", ours=tree_s, peer=rows_s, unit="s", ratio=rows_s / tree_s, goal=1.0
        ),
        Row(
            name=f"{name}: its peak memory",
            ours=tree_gib,
            peer=_peak_gib(device),
            unit="GiB",
            ratio=_peak_gib(device) / tree_gib if tree_gib else 1.0,
        ),
    ]


def _wait(learner: Learner) -> None:
    if learner.policy.device.type == "cuda":
        torch.cuda.synchronize()


def _reset_peak(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak_gib(device: str) -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), action="append", help="default: the Qwen3 shapes")
    parser.add_argument("--device", default="cuda")
    chosen = parser.parse_args(arguments)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing was measured", file=sys.stderr)
        return 3
    rows = []
    for name in chosen.shape or ["qwen3-0.6b", "qwen3-4b"]:
        rows += measure(name, chosen.device)
        gc.collect()
    write_rows("gpu", rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
