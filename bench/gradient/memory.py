"""Peak memory of loss and backward: a token tree against plain rows of the same samples.

Two batches of about 16k tree tokens: one group of 8 rollouts of 1k behind an 8k prompt, and 16 agents of six
turns behind a 2k system prompt. A Qwen3 of 2 M parameters beside an embedding of 32k ids, LoRA of rank 16.

Each figure is the growth of a fresh process's largest resident set over one pass, large blocks being given
back when they are freed, so that what is counted is what is needed. Plain rows are the whole batch at once,
without padding, or one row at a time: the least that rows can need, at the price of forwarding every prompt
again. Both score the same entries with the same code.
"""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.process.resources import give_back_freed_memory
from art.training.device_memory import MemoryPeak, used_memory
from art.training.lora import LoraAdapters
from art.training.packing.plain_rows import pack_rows
from art.training.policy import Policy
from art.wire.training import LoraSpec
from bench.rows import Row, write_rows

VOCABULARY = 32_000
BUDGET = 1_000_000
"""All at once."""
SHAPES = {
    "8 answers of 1k behind 8k": (8, 8192, 1, 1024, 0),
    "16 agents of 6 turns behind 2k": (16, 2048, 6, 90, 60),
}
"""Rollouts, tokens of the prompt, turns, tokens sampled and observed a turn."""
WAYS = ("tree", "tree, layers twice", "rows", "one row")


def batch_of(shape: str) -> Batch:
    rollouts, prompt, turns, sampled, observed = SHAPES[shape]
    rng = np.random.default_rng(0)

    def ids(count: int) -> list[int]:
        return rng.integers(0, VOCABULARY, count).tolist()

    shared, made = ids(prompt), []
    for number in range(rollouts):
        context, samples = list(shared), []
        for turn in range(turns):
            completion = ids(sampled)
            samples.append(
                SampleRow(
                    sample_id=f"{number}.{turn}",
                    prompt_ids=list(context),
                    completion_ids=completion,
                    completion_logprobs=[-1.0] * sampled,
                )
            )
            context += completion + ids(observed)
        made.append(RolloutRow(rollout=f"{number}", reward=float(number % 2), samples=samples))
    return build_batch([GroupRow(rollouts=made)])


def model() -> Policy:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=16_384,
        tie_word_embeddings=True,
    )
    policy = Policy(AutoModelForCausalLM.from_config(config), name="bench")
    LoraAdapters(policy).attach("a1", LoraSpec(), seed=0)
    return policy


def measure(shape: str, way: str) -> None:
    """Print the peak in MiB and the forwarded tokens of one pass, in this process."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    give_back_freed_memory()
    policy, batch = model(), batch_of(shape)
    policy.checkpoint_activations = way.endswith("twice")
    if way.startswith("tree"):
        packing = policy.pack(batch.tree, batch.entries, BUDGET)
    else:
        packing = pack_rows(batch.tree, batch.entries, 1 if way == "one row" else BUDGET)
    before, peak = used_memory(policy.device), MemoryPeak(policy.device)
    for micro in packing.micro_batches:
        scores, _ = policy.entry_scores(micro)
        scores.logprobs_E.mean().backward()
        del scores
    print((peak.bytes() - before) / 2**20, packing.forwarded)


def child(shape: str, way: str) -> float:
    command = [sys.executable, "-m", "bench.gradient.memory", shape, way]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600)
    megabytes, forwarded = done.stdout.split()
    print(f"{shape}: {way}: {float(megabytes):,.0f} MiB, {int(forwarded):,} tokens forwarded", flush=True)
    return float(megabytes)


def main(arguments: list[str]) -> None:
    if arguments:
        measure(*arguments)
        return
    rows = []
    for shape in SHAPES:
        found = {way: child(shape, way) for way in WAYS}
        for ours, peer, goal in (
            ("tree", "rows", 2.0),
            ("tree, layers twice", "rows", None),  # rows could be computed twice as well
            ("tree", "one row", None),
            ("tree, layers twice", "one row", None),
        ):
            rows.append(
                Row(
                    name=f"{shape}: {ours}, against {peer}",
                    ours=found[ours],
                    peer=found[peer],
                    unit="MiB",
                    ratio=found[peer] / found[ours],
                    goal=goal,
                )
            )
    write_rows("memory", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
