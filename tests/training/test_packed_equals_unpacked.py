"""Loss and gradient of the tree equal those of plain rows through a stock model, however it is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from tiny_policies import SHAPE, causal_lm, games, ids_to, llama, policy, qwen3, randomize
from transformers import PreTrainedConfig

from art.batch.batch_types import Batch
from art.training.lora import LoraAdapters
from art.training.losses.registry import make_loss
from art.training.minibatches import make_columns
from art.training.packing.pack import pack
from art.wire.algorithm import Algorithm, LossSpec
from art.wire.training import LoraSpec

pytestmark = pytest.mark.slow

LORA = LoraSpec(r=3, alpha=6)
Gradients = dict[str, torch.Tensor]


def plain(
    config: PreTrainedConfig, batch: Batch, spec: LossSpec, dtype: torch.dtype
) -> tuple[float, Gradients]:
    """One row per entry's whole context, stock attention, PEFT's own forward: nothing of the tree's code."""
    model = get_peft_model(
        causal_lm(config, "sdpa", dtype),
        LoraConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules=LORA.targets, task_type="CAUSAL_LM"),
    )
    model.eval()
    trained = {name.replace(".default.", "."): p for name, p in model.named_parameters() if "lora_" in name}
    randomize(trained)
    tree, entries = batch.tree, batch.entries
    total = torch.zeros((), dtype=dtype)
    logprobs: dict[int, torch.Tensor] = {}
    for node in sorted(set(entries.token_E.tolist())):
        ids = torch.tensor(ids_to(tree, node))
        logits = model(input_ids=ids[None, :-1]).logits[0, -1]
        logprobs[node] = torch.log_softmax(logits, -1)[ids[-1]]
    chosen = torch.stack([logprobs[node] for node in entries.token_E.tolist()])
    columns = make_columns(entries, dtype=dtype, device="cpu")
    inputs = columns.inputs(chosen, np.arange(len(entries)), normalizer=batch.normalizer)
    total = make_loss(Algorithm(loss=spec))(inputs).loss
    total.backward()
    return total.item(), {name: p.grad for name, p in trained.items() if p.grad is not None}


def packed(
    config: PreTrainedConfig,
    batch: Batch,
    spec: LossSpec,
    dtype: torch.dtype,
    attention: str,
    budget: int,
    block: int,
) -> tuple[float, Gradients]:
    tiny = policy(config, attention=attention, dtype=dtype, block=block)
    adapters = LoraAdapters(tiny)
    adapters.attach("a1", LORA, seed=0)
    trained = adapters.parameters("a1")
    randomize(trained)
    loss, total = make_loss(Algorithm(loss=spec)), 0.0
    entries = batch.entries
    columns = make_columns(entries, dtype=dtype, device="cpu")
    for micro in pack(batch.tree, entries, budget).micro_batches:
        scores, _ = tiny.entry_scores(micro)
        output = loss(columns.inputs(scores.logprobs_E, micro.entry_E, normalizer=batch.normalizer))
        output.loss.backward()
        total += output.loss.item()
    return total, {name: p.grad for name, p in trained.items() if p.grad is not None}


def assert_same(one: tuple[float, Gradients], other: tuple[float, Gradients], tolerance: float) -> None:
    assert abs(one[0] - other[0]) <= tolerance * abs(other[0])
    assert one[1].keys() == other[1].keys() and len(one[1]) == 2 * 7 * 2
    for name, gradient in other[1].items():
        norm = gradient.norm()
        assert norm > 0, name
        assert (one[1][name] - gradient).norm() <= tolerance * norm, name


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    budget=st.integers(1, 120),
    block=st.integers(1, 12),
    loss=st.sampled_from(["cispo", "ppo"]),
    context=st.sampled_from([0.0, 0.4]),
)
@pytest.mark.parametrize("attention", ["rectangles", "dense"])
def test_in_float64_to_ten_digits(
    attention: str, seed: int, budget: int, block: int, loss: str, context: float
) -> None:
    batch, spec = games(seed, groups=2, size=3, untrained=context), LossSpec(name=loss)
    assume(not batch.empty)
    wanted = plain(qwen3(), batch, spec, torch.float64)
    assume(any(gradient.norm() > 0 for gradient in wanted[1].values()))  # PPO may clip a small batch away
    assert_same(packed(qwen3(), batch, spec, torch.float64, attention, budget, block), wanted, 1e-10)


@pytest.mark.parametrize("attention", ["rectangles", "dense"])
def test_in_float32(attention: str) -> None:
    batch = games(3)
    got = packed(qwen3(), batch, LossSpec(), torch.float32, attention, 60, 8)
    assert_same(got, plain(qwen3(), batch, LossSpec(), torch.float32), 1e-5)


def test_another_architecture() -> None:
    batch = games(4)
    got = packed(llama(), batch, LossSpec(), torch.float64, "rectangles", 60, 8)
    assert_same(got, plain(llama(), batch, LossSpec(), torch.float64), 1e-10)


def test_in_bfloat16_the_tree_is_as_exact_as_plain_rows() -> None:
    batch = games(5)
    exact = plain(qwen3(), batch, LossSpec(), torch.float64)[0]
    rows = plain(qwen3(), batch, LossSpec(), torch.bfloat16)[0]
    got = packed(qwen3(), batch, LossSpec(), torch.bfloat16, "rectangles", 60, 8)[0]
    assert abs(got - exact) <= 2 * abs(rows - exact) + 0.02 * abs(exact)
    assert SHAPE["num_attention_heads"] != SHAPE["num_key_value_heads"], "grouped-query heads are meant"
