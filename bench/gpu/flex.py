"""What FlexAttention costs beside its arithmetic: compilation, the plan of a micro-batch, a layer's pass.

    compilation   the first forward and backward pass of a fresh machine; later processes find it in a cache
    plan          our block mask of a tree, against torch's `create_block_mask`, for each micro-batch
    a layer       forward and backward of one layer's attention, against causal flash attention (SDPA) on a
                  row of as many tokens

It runs before all that trains, so that compilation is measured where nothing is cached.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention

from art.batch.batch_types import Batch
from art.training.attention.flex import attend_flex, block_mask
from art.training.attention.pieces import mask_pairs
from art.training.attention.tree_plan import plan_attention
from bench.gpu.ceilings import measure_seconds
from bench.gpu.results import MATMUL, Session
from bench.gpu.shapes import Shape, find_shape, wait_for
from bench.gpu.trainer import dense_row
from bench.gpu.tree import make_group


def make_inputs(shape: Shape, tokens: int, device: str) -> list[torch.Tensor]:
    """Queries, keys and values of one layer, [1, heads, T, head size]."""
    a = shape.architecture
    heads = (a.num_attention_heads, a.num_key_value_heads, a.num_key_value_heads)
    trained = device.startswith("cuda")  # elsewhere FlexAttention has no backward pass
    return [
        torch.randn(1, count, tokens, a.head_dim, device=device, dtype=torch.bfloat16, requires_grad=trained)
        for count in heads
    ]


def pass_layer(inputs: list[torch.Tensor], plan: Any, *, backward: bool) -> None:
    with torch.set_grad_enabled(backward):
        out = attend_flex(*inputs, 0.1, plan)
    if backward:
        out.sum().backward()


def measure_plan(session: Session, name: str, batch: Batch) -> None:
    """Seconds of a block mask, ours and torch's."""
    device, tree = session.device, batch.tree
    end = torch.as_tensor(tree.end_T, device=device)
    tokens = len(tree)

    def attends(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (k <= q) & (q < end[k])

    ours = measure_seconds(lambda: block_mask(tree.end_T, tree.depth_T, device), device, 5)
    theirs = measure_seconds(
        lambda: create_block_mask(attends, None, None, tokens, tokens, device=device), device, 3
    )
    pairs = int(np.sum(tree.depth_T + 1))
    computed = mask_pairs(block_mask(tree.end_T, tree.depth_T, device))
    session.record(
        f"plan of a micro-batch, {name}",
        1000 * ours,
        "ms",
        peer=1000 * theirs,
        peer_name="create_block_mask",
        note=f"{computed / pairs:.2f} x the pairs that are needed",
    )


def measure_layer(session: Session, shape: Shape, name: str, batch: Batch) -> None:
    """Milliseconds of one layer's attention, forward and backward, beside a causal row of as many tokens."""
    device, tree, a = session.device, batch.tree, shape.architecture
    on_gpu = device.startswith("cuda")
    inputs = make_inputs(shape, len(tree), device)
    plan = plan_attention(tree.end_T, tree.depth_T, "flex", dtype=torch.bfloat16, device=device)
    ours = measure_seconds(lambda: pass_layer(inputs, plan, backward=on_gpu), device, 10 if on_gpu else 1)

    def causal_row() -> None:
        out = scaled_dot_product_attention(*inputs, is_causal=True, scale=0.1, enable_gqa=True)
        if on_gpu:
            out.sum().backward()

    theirs = measure_seconds(causal_row, device, 10 if on_gpu else 1)
    flops = 3.5 * 4 * a.num_attention_heads * a.head_dim * float(np.sum(tree.depth_T + 1))
    rate = session.ceiling(MATMUL)
    session.record(
        f"one layer's attention, {'forward and backward' if on_gpu else 'forward'}, {name}",
        1000 * ours,
        "ms",
        peer=1000 * theirs,
        peer_name="SDPA on a causal row of as many tokens",
        limit=None if rate is None or not on_gpu else 1000 * flops / (rate * 1e12),
        limit_how="14 x heads x head size x pairs at the measured matrix rate",
    )


def main(arguments: list[str]) -> None:
    session, _ = Session.open("flex", arguments)
    shape = find_shape("qwen3-0.6b", dry=session.dry)
    tree, row = make_group(shape)[0], dense_row(shape, shape.row)
    on_gpu = session.device.startswith("cuda")
    plan = plan_attention(
        row.tree.end_T, row.tree.depth_T, "flex", dtype=torch.bfloat16, device=session.device
    )
    inputs = make_inputs(shape, len(row.tree), session.device)
    begin = time.perf_counter()
    pass_layer(inputs, plan, backward=on_gpu)
    wait_for(session.device)
    session.record("first pass of FlexAttention, compiled for this shape", time.perf_counter() - begin, "s")
    for name, batch in ((f"a row of {shape.row:,}", row), (f"a tree of {len(tree.tree):,}", tree)):
        measure_plan(session, name, batch)
        measure_layer(session, shape, name, batch)


if __name__ == "__main__":
    main(sys.argv[1:])
