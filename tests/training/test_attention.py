from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art.batch.batch_types import TokenTree
from art.batch.token_tree import build_tree
from art.errors import ConfigurationError
from art.training.attention import checks as kernel
from art.training.attention.exact import attend_dense
from art.training.attention.interface import tree_attention
from art.training.attention.pieces import TreePlan
from art.training.attention.rectangles import attend_rectangles
from art.training.attention.tree_plan import plan_attention

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=10)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def tree_of(sequences: list[list[int]]) -> TokenTree:
    return build_tree([np.array(sequence) for sequence in sequences])[0]


def plan_of(tree: TokenTree, name: str = "rectangles", **options: Any) -> TreePlan:
    options = {"block": 4, "long": 3, **options}
    return plan_attention(tree.end_T.astype(np.int64), tree.depth_T.astype(np.int64), name, **options)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(SEQUENCES, st.integers(1, 20), st.integers(1, 8))
def test_the_pieces_cover_each_pair_of_the_mask_once(
    sequences: list[list[int]], block: int, long: int
) -> None:
    tree = tree_of(sequences)
    plan = plan_of(tree, block=block, long=long)
    index = np.arange(len(tree))
    needed = (index[None, :] <= index[:, None]) & (index[:, None] < tree.end_T[None, :])
    count = np.zeros_like(needed, dtype=int)
    for square in plan.squares:
        rows = index[square.start : square.stop]
        if square.mask is None:
            assert square.ancestors is None and not square.reach
            count[np.ix_(rows, rows)] += np.tril(np.ones((len(rows), len(rows)), int))
        else:
            above = np.zeros(0, int) if square.ancestors is None else square.ancestors.numpy()
            keys = np.concatenate([above, index[square.start - square.reach : square.stop]])
            count[np.ix_(rows, keys)] += (square.mask.numpy() == 0).astype(int)
    for rect in plan.rectangles:
        count[rect.start : rect.stop, rect.key_start : rect.key_stop] += 1
    assert np.array_equal(count, needed.astype(int))
    assert [s.start for s in plan.squares] == [0, *(s.stop for s in plan.squares[:-1])]
    assert plan.squares[-1].stop == len(tree)
    assert plan.pairs >= needed.sum()


def results(
    attend: Callable[..., torch.Tensor], plan: TreePlan, dtype: torch.dtype, size: int
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = [(1, 4, size, 8), (1, 2, size, 8), (1, 2, size, 8)]
    leaves = [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]
    out = attend(*leaves, 0.3, plan)
    weight = torch.randn(out.shape, generator=generator).to(dtype)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(SEQUENCES, st.integers(1, 12), st.integers(1, 8), st.sampled_from(list(TOLERANCE)))
def test_rectangles_equal_the_dense_mask(
    sequences: list[list[int]], block: int, long: int, dtype: torch.dtype
) -> None:
    tree = tree_of(sequences)
    got = results(attend_rectangles, plan_of(tree, block=block, long=long, dtype=dtype), dtype, len(tree))
    # Measured against float64, so that two errors of bfloat16 are not added.
    exact = results(attend_dense, plan_of(tree, "dense", dtype=torch.float64), torch.float64, len(tree))
    rounded = results(attend_dense, plan_of(tree, "dense", dtype=dtype), dtype, len(tree))
    for a, b, c in zip(got, exact, rounded, strict=True):
        assert a.dtype == dtype
        own = (c.double() - b).norm()
        assert (a.double() - b).norm() <= TOLERANCE[dtype] * b.norm() + 2 * own + 1e-30


@pytest.mark.slow
def test_gradients_of_rectangles_against_finite_differences() -> None:
    tree = tree_of([[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 10, 11], [1, 2, 3, 4, 12, 13]])
    plan = plan_of(tree, block=2, long=2, dtype=torch.float64)
    assert {square.ancestors is None for square in plan.squares} == {True, False}
    assert plan.rectangles and any(square.reach for square in plan.squares)
    leaves = [torch.randn(1, h, len(tree), 4, dtype=torch.float64, requires_grad=True) for h in (2, 1, 1)]
    assert torch.autograd.gradcheck(lambda q, k, v: attend_rectangles(q, k, v, 0.5, plan), leaves)


def test_long_causal_runs_and_big_subtrees_need_few_pairs() -> None:
    prompt = list(range(400))
    tree = tree_of([prompt + [500 + n] * 50 for n in range(8)])
    plan = plan_of(tree, block=96, long=64)
    depth = tree.depth_T.astype(np.int64)
    needed = int((depth + 1).sum())
    assert needed <= plan.pairs <= 1.25 * needed
    assert plan_of(tree, "dense").pairs == len(tree) ** 2


def test_this_torch_has_the_kernels() -> None:
    assert torch.__version__.startswith("2.13")  # the private operations are pinned to this version's shape
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert kernel.choose_kernel("auto", torch.device("cpu"), dtype) == "rectangles"


def test_another_torch_falls_back_to_the_dense_mask_with_a_notice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(*inputs: object) -> torch.Tensor:
        return attend_dense(*inputs) * 1.1  # type: ignore[arg-type]

    def gone(*inputs: object) -> torch.Tensor:
        raise AttributeError("'_OpNamespace' 'aten' object has no attribute '_scaled_dot_product_flash...'")

    for broken, reason in (
        (wrong, "computes something else"),
        (gone, "has other flash attention operations"),
    ):
        monkeypatch.setattr(kernel, "attend_rectangles", broken)
        with caplog.at_level(logging.WARNING):
            assert kernel.choose_kernel("auto", torch.device("cpu"), torch.float32) == "dense"
        assert reason in caplog.text
        with pytest.raises(ConfigurationError, match=reason):
            kernel.choose_kernel("rectangles", torch.device("cpu"), torch.float32)


def test_unknown_attention_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Known: auto, dense, flex, rectangles"):
        kernel.choose_kernel("flash", torch.device("cpu"), torch.float32)
    assert kernel.choose_kernel("auto", torch.device("meta"), torch.float32) == "dense"
    with pytest.raises(ConfigurationError, match="meta"):
        kernel.choose_kernel("rectangles", torch.device("meta"), torch.float32)


def test_what_the_tree_cannot_do_is_refused() -> None:
    tree = tree_of([[1, 2, 3, 4]])
    q = torch.zeros(1, 4, 4, 8)
    with pytest.raises(ConfigurationError, match="position_bias"):
        tree_attention(torch.nn.Identity(), q, q, q, None, tree_plan=plan_of(tree), position_bias=q)
    with pytest.raises(ConfigurationError, match="no attention mask"):
        tree_attention(torch.nn.Identity(), q, q, q, torch.zeros(4, 4), tree_plan=plan_of(tree))


@pytest.mark.slow
def test_bfloat16_on_a_long_tree_is_no_less_exact_than_a_dense_mask() -> None:
    """Two prompts with a rectangle each, blocks with gathered ancestors, several hundred keys a row."""
    prompts = [list(range(start, start + 150)) for start in (0, 1000)]
    turns = [[2000 + n, *range(3000, 3025)] for n in range(6)]
    tree = tree_of([[*prompt, *one, *other] for prompt in prompts for one in turns[:3] for other in turns])
    plan = plan_of(tree, block=128, long=64, dtype=torch.bfloat16)
    assert len(plan.rectangles) == 2 and plan.pool is not None
    got = results(attend_rectangles, plan, torch.bfloat16, len(tree))
    exact = results(attend_dense, plan_of(tree, "dense", dtype=torch.float64), torch.float64, len(tree))
    rounded = results(attend_dense, plan_of(tree, "dense", dtype=torch.bfloat16), torch.bfloat16, len(tree))
    for name, a, b, c in zip(("out", "query", "key", "value"), got, exact, rounded, strict=True):
        error, allowed = (a.double() - b).norm() / b.norm(), (c.double() - b).norm() / b.norm()
        assert error <= allowed, (name, float(error), float(allowed))
