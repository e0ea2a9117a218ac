"""Windows, soft caps, sinks and values of another size: on trees and on plain rows, against the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art.batch.batch_types import TokenTree
from art.batch.token_tree import build_tree
from art.training.attention.interface import tree_attention, windowed_plan
from art.training.attention.tree_plan import plan_attention

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=10)
HEADS, GROUPS, SIZE = 4, 2, 6


def tree_of(sequences: list[list[int]]) -> TokenTree:
    return build_tree([np.array(sequence) for sequence in sequences])[0]


def sees(tree: TokenTree, window: int | None) -> torch.Tensor:
    """By walking up from each token, `window` steps at most."""
    mask = torch.zeros(len(tree), len(tree), dtype=torch.bool)
    for query in range(len(tree)):
        at, steps = query, 0
        while at >= 0 and (window is None or steps < window):
            mask[query, at] = True
            at, steps = int(tree.parent_T[at]), steps + 1
    return mask


def by_the_formula(
    leaves: list[torch.Tensor], mask: torch.Tensor, scale: float, softcap: float | None
) -> torch.Tensor:
    query, key, value, *sinks = leaves
    scores = query @ key.repeat_interleave(HEADS // GROUPS, 1).transpose(2, 3) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks:
        scores = torch.cat([scores, sinks[0].view(1, HEADS, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = torch.softmax(scores, -1)[..., : key.shape[2]]
    return weights @ value.repeat_interleave(HEADS // GROUPS, 1)


def tensors(size: int, *, wide: int = SIZE, sinks: bool = False, batch: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    shapes = [(batch, HEADS, size, SIZE), (batch, GROUPS, size, SIZE), (batch, GROUPS, size, wide)]
    shapes += [(HEADS,)] if sinks else []  # type: ignore[list-item]
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


def assert_same(leaves: list[torch.Tensor], got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Outputs and all gradients, in float64."""
    weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one, other = ([out, *torch.autograd.grad((out * weight).sum(), leaves)] for out in (got, wanted))
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        assert (a - b).norm() <= 1e-12 * (b.norm() + 1)


def attend(leaves: list[torch.Tensor], **options: Any) -> torch.Tensor:
    query, key, value, *sinks = leaves
    options["s_aux"] = sinks[0] if sinks else None
    out, _ = tree_attention(torch.nn.Identity(), query, key, value, None, scaling=0.4, **options)
    return out.transpose(1, 2)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    sequences=SEQUENCES,
    kernel=st.sampled_from(["rectangles", "dense"]),
    block=st.integers(1, 12),
    window=st.none() | st.integers(1, 16),
    softcap=st.none() | st.just(1.5),
    sinks=st.booleans(),
    wide=st.sampled_from([SIZE, SIZE - 2, SIZE + 3]),
)
def test_on_a_tree(
    sequences: list[list[int]],
    kernel: str,
    block: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
    wide: int,
) -> None:
    tree = tree_of(sequences)
    end, depth = tree.end_T.astype(np.int64), tree.depth_T.astype(np.int64)
    plan = plan_attention(end, depth, kernel, block=block, long=3, dtype=torch.float64)
    leaves = tensors(len(tree), wide=wide, sinks=sinks)
    got = attend(leaves, tree_plan=plan, sliding_window=window, softcap=softcap)
    assert_same(leaves, got, by_the_formula(leaves, sees(tree, window), 0.4, softcap))


@pytest.mark.parametrize("window", [None, 1, 5, 40])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("sinks", [False, True])
def test_on_plain_rows(window: int | None, softcap: float | None, sinks: bool) -> None:
    leaves = tensors(9, sinks=sinks, batch=3, wide=SIZE - 1)
    got = attend(leaves, sliding_window=window, softcap=softcap)
    row = tree_of([list(range(9))])
    assert_same(leaves, got, by_the_formula(leaves, sees(row, window), 0.4, softcap))


def test_the_window_counts_depth_not_distance_in_the_row() -> None:
    """Prompt [1 2 3], then ten siblings: the last one still sees the end of the prompt."""
    tree = tree_of([[1, 2, 3, 10 + n, 20] for n in range(10)])
    plan = plan_attention(tree.end_T.astype(np.int64), tree.depth_T.astype(np.int64), "rectangles", block=4)
    like = torch.zeros(1)
    last = len(tree) - 2
    assert int(tree.depth_T[last]) == 3
    cut = windowed_plan(plan, 3, like)
    (square,) = [square for square in cut.squares if square.start <= last < square.stop]
    assert square.ancestors is not None and square.mask is not None
    keys = [*square.ancestors.tolist(), *range(square.start, square.stop)]
    seen = [
        key for key, mask in zip(keys, square.mask[last - square.start].tolist(), strict=True) if mask == 0
    ]
    assert seen == [1, 2, last]
    assert windowed_plan(plan, 3, like) is cut, "one plan serves all layers of a window"


def test_a_window_costs_what_it_shows() -> None:
    """4,000 tokens under a window of 64: blocks see the window and themselves, not the whole path."""
    length = 4000
    plan = plan_attention(np.full(length, length), np.arange(length), "rectangles")
    assert windowed_plan(plan, 64, torch.zeros(1)).pairs <= length * (64 + plan.block)


def test_gradients_in_bfloat16_are_as_near_as_the_formula_itself() -> None:
    tree = tree_of([[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 8, 9], [1, 10, 11, 12]])
    end, depth = tree.end_T.astype(np.int64), tree.depth_T.astype(np.int64)
    exact = tensors(len(tree), sinks=True)
    wanted = by_the_formula(exact, sees(tree, 3), 0.4, None)
    rough = [leaf.detach().to(torch.bfloat16).requires_grad_() for leaf in exact]
    plan = plan_attention(end, depth, "rectangles", block=4, long=3, dtype=torch.bfloat16)
    got = attend(rough, tree_plan=plan, sliding_window=3)
    assert got.dtype == torch.bfloat16
    grads = zip(torch.autograd.grad(got.sum(), rough), torch.autograd.grad(wanted.sum(), exact), strict=True)
    for a, b in grads:
        assert a.dtype == torch.bfloat16
        assert (a.double() - b).norm() <= 0.05 * b.norm() + 0.05
