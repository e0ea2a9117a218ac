"""How little is forwarded, and how fast: packing on the corpora of `corpora.py`, then a packed step against a
bare forward and backward of the same model.

Packing is counted on batches of 64 groups of 8 (16 groups of 16 under the prompt of 8k), at the smallest of
8k, 16k, 32k and 64k tokens at which little is forwarded twice. Fill leaves the emptiest micro-batch out: a
corpus is no multiple of the budget. `micro-batches` is against the fewest that could hold the lower bound.

Utilisation: tokens per second of `Policy.entry_scores` and its backward, planning included, against the same
model with the same LoRA on dense causal rows of as many tokens in all, of similar context, with as many
logits, through torch's own attention. One thread each, in turns; the time is that thread's, so that what else
the machine does counts little. The ratio is the median over the repetitions.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from art.batch.batch_types import Batch, GroupRow
from art.batch.build import build_batch
from art.process.resources import keep_freed_memory
from art.training.attention.tree_plan import plan_attention
from art.training.packing.pack import pack
from art.training.packing.runs import Packing
from art.training.policy import Policy
from art.training.weights import Weights
from art.wire.training import LoraSpec
from bench import corpora
from bench.gradient.tree import games
from bench.models import NANO, SMALL, qwen3
from bench.rows import Row, write_rows

BUDGET = 8192
REPETITIONS = 5
LARGE: dict[str, tuple[Callable[[], list[GroupRow]], int]] = {
    "single turn": (partial(corpora.single_turn, groups=64), 8192),
    "6-turn tool use": (partial(corpora.tool_use, groups=64), 8192),
    "15 turns, one long system prompt": (partial(corpora.long_system_prompt, groups=64), 65536),
    "groups of 16, prompt of 8k": (partial(corpora.long_prompt, groups=16), 32768),
    "re-rendered at each turn": (partial(corpora.rerendered, groups=64), 16384),
    "nothing shared": (partial(corpora.nothing_shared, groups=64), 8192),
}
TIMED: dict[str, Callable[[], list[GroupRow]]] = {
    "tic-tac-toe": games,
    "single turn": corpora.single_turn,
    "6-turn tool use": partial(corpora.tool_use, groups=3),
    "re-rendered at each turn": partial(corpora.rerendered, groups=2),
    "nothing shared": partial(corpora.nothing_shared, groups=3),
}
SHAPES = {"nano": NANO, "3M": SMALL}


def counted_rows(name: str, groups: list[GroupRow], budget: int) -> list[Row]:
    batch = build_batch(groups)
    packing = pack_batch(batch, budget)
    sizes = sorted(len(micro.tokens_T) for micro in packing.micro_batches)
    fewest = -(-packing.lower_bound // packing.budget)
    full = sum(sizes[1:]) / (packing.budget * max(1, len(sizes) - 1))
    pairs = sum(plan_attention(m.end_T, m.depth_T, "rectangles").pairs for m in packing.micro_batches)
    at = f"{name}, budget {budget}: "

    def row(what: str, ours: float, peer: float, unit: str, goal: float | None) -> Row:
        return Row(name=at + what, ours=ours, peer=peer, unit=unit, ratio=peer / ours, goal=goal)

    return [
        row("raw tokens", packing.forwarded, batch.metrics["data/raw_tokens"], "tokens", None),
        row("lower bound", packing.forwarded, packing.lower_bound, "tokens", 1 / 1.02),
        Row(name=at + "fill", ours=full, unit="share", goal=0.97),
        row("micro-batches", len(sizes), fewest, "passes", None),
        row("attention pairs", pairs, packing.pairs_needed, "pairs", None),
    ]


def pack_batch(batch: Batch, budget: int) -> Packing:
    return pack(batch.tree, batch.entries, budget)


@dataclass(frozen=True, kw_only=True)
class Dense:
    """As many tokens in dense rows of about the tree's context, and as many logits."""

    ids_BL: torch.Tensor
    scored: torch.Tensor
    """Flat positions."""

    @staticmethod
    def like(packing: Packing) -> Dense:
        depth = np.concatenate([micro.depth_T for micro in packing.micro_batches])
        length = round(2 * float(depth.mean()) + 1)
        rows = max(1, round(packing.forwarded / len(packing.micro_batches) / length))
        scored = sum(len(micro.predictor_P) for micro in packing.micro_batches) / packing.forwarded
        count = round(scored * rows * length)
        return Dense(
            ids_BL=torch.randint(0, corpora.VOCABULARY, (rows, length)),
            scored=torch.arange(count) * (rows * length) // count,
        )

    @property
    def tokens(self) -> int:
        return self.ids_BL.numel()


def model(shape: str) -> Policy:
    torch.manual_seed(0)
    config = qwen3(SHAPES[shape], vocabulary=corpora.VOCABULARY, positions=32768)
    policy = Policy(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa"), name="bench")
    Weights(policy).attach("a1", LoraSpec(), seed=0)
    return policy


def packed_pass(policy: Policy, batch: Batch) -> None:
    for micro in pack_batch(batch, BUDGET).micro_batches:
        scores, _ = policy.entry_scores(micro)
        scores.logprobs_E.sum().backward()


def bare_pass(policy: Policy, dense: Dense) -> None:
    causal_lm = policy.causal_lm
    decoder = getattr(causal_lm, causal_lm.base_model_prefix)
    hidden_BLD = decoder(input_ids=dense.ids_BL, use_cache=False).last_hidden_state
    logits = causal_lm.get_output_embeddings()(hidden_BLD.flatten(0, 1)[dense.scored])
    torch.nn.functional.cross_entropy(logits, dense.ids_BL.flatten()[dense.scored]).backward()


def timed_row(shape: str, name: str, groups: list[GroupRow]) -> Row:
    batch = build_batch(groups)
    packing = pack_batch(batch, BUDGET)
    dense = Dense.like(packing)
    ours, plain = model(shape), model(shape)
    speeds = []
    with plain.stock_attention():
        for _ in range(REPETITIONS + 1):
            begin = time.thread_time()
            packed_pass(ours, batch)
            middle = time.thread_time()
            bare_pass(plain, dense)
            after = time.thread_time()
            speeds.append((packing.forwarded / (middle - begin), dense.tokens / (after - middle)))
    return Row(
        name=f"{shape} model, {name}: tokens per second, against a bare pass",
        ours=statistics.median(one for one, _ in speeds[1:]),
        peer=statistics.median(one for _, one in speeds[1:]),
        unit="tokens/s",
        ratio=statistics.median(one / other for one, other in speeds[1:]),
        goal=0.85,
    )


def main() -> None:
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")  # PEFT's call, not ours
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = [row for name, (groups, budget) in LARGE.items() for row in counted_rows(name, groups(), budget)]
    rows += [timed_row(shape, name, groups()) for shape in SHAPES for name, groups in TIMED.items()]
    write_rows("packing", rows)


if __name__ == "__main__":
    main()
