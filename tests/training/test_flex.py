"""FlexAttention's block mask is the tree's mask. Its kernel and gradients need a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_policies import games

from art.errors import ConfigurationError
from art.training.attention.checks import choose_kernel, kernel_fault
from art.training.attention.exact import attend_dense
from art.training.attention.flex import FLEX_BLOCK, attend_flex, block_mask
from art.training.attention.pieces import mask_pairs
from art.training.attention.tree_plan import plan_attention
from art.training.packing.pack import pack


def trees() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """`end` and `depth` of trees from a few tokens to several blocks."""
    found = {}
    for seed, groups in ((0, 1), (1, 6), (2, 16)):
        batch = games(seed, groups=groups, size=6)
        (micro, *_) = pack(batch.tree, batch.entries, 10_000).micro_batches
        found[f"games {groups}"] = micro.end_T, micro.depth_T
    prompt, answers, length = 300, 3, 150
    size = prompt + answers * length
    end_T, depth_T = np.full(size, size), np.arange(size)
    for answer in range(answers):
        rows = slice(prompt + answer * length, prompt + (answer + 1) * length)
        end_T[rows], depth_T[rows] = rows.stop, prompt + np.arange(length)
    found["long prompt"] = end_T, depth_T
    return found


TREES = trees()


def exact(end_T: np.ndarray, depth_T: np.ndarray, window: int | None) -> torch.Tensor:
    at = np.arange(len(end_T))
    mask = (at <= at[:, None]) & (at[:, None] < end_T)
    if window is not None:
        mask &= depth_T[:, None] - depth_T < window
    return torch.as_tensor(mask)


@pytest.mark.parametrize("window", [None, 5, 200])
@pytest.mark.parametrize("name", TREES)
def test_the_block_mask_is_the_mask(name: str, window: int | None) -> None:
    end_T, depth_T = TREES[name]
    size, blocks = len(end_T), -(-len(end_T) // FLEX_BLOCK)
    mask = block_mask(end_T, depth_T, "cpu", window=window)
    expected = exact(end_T, depth_T, window)
    got = torch.zeros(blocks * FLEX_BLOCK, blocks * FLEX_BLOCK, dtype=torch.bool)
    at = torch.arange(blocks * FLEX_BLOCK)
    every = mask.mask_mod(torch.tensor(0), torch.tensor(0), at[:, None], at[None, :])
    pieces = [(mask.kv_num_blocks, mask.kv_indices, every)]
    pieces.append((mask.full_kv_num_blocks, mask.full_kv_indices, torch.ones_like(every)))
    for counts, indices, values in pieces:
        for row, count in enumerate(counts[0, 0].tolist()):
            for column in indices[0, 0, row, :count].tolist():
                block = np.s_[
                    row * FLEX_BLOCK : (row + 1) * FLEX_BLOCK, column * FLEX_BLOCK : (column + 1) * FLEX_BLOCK
                ]
                assert not got[block].any(), "no block is computed twice"
                got[block] = values[block]
    assert torch.equal(got[:size, :size], expected)
    assert got.any(1).all(), "no row is empty"
    assert expected.sum() <= mask_pairs(mask) <= got.numel()


def test_blocks_that_nobody_attends_to_are_left_out() -> None:
    end_T, depth_T = TREES["long prompt"]
    assert mask_pairs(block_mask(end_T, depth_T, "cpu")) < 0.5 * len(end_T) ** 2 + 1e5
    mask = block_mask(np.full(1024, 1024), np.arange(1024), "cpu")
    assert int(mask.full_kv_num_blocks.sum()) == 28 and int(mask.kv_num_blocks.sum()) == 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["games 16", "long prompt"])
def test_its_forward_is_that_of_the_dense_mask(name: str) -> None:
    end_T, depth_T = TREES[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, heads, len(end_T), 16, generator=generator) for heads in (4, 2, 2)]
    with torch.no_grad():
        got = attend_flex(*inputs, 0.3, plan_attention(end_T, depth_T, "flex"))
        expected = attend_dense(*inputs, 0.3, plan_attention(end_T, depth_T, "dense"))
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.slow
def test_a_layer_that_sees_a_window_gets_its_own_mask() -> None:
    end_T, depth_T = TREES["long prompt"]
    plan = plan_attention(end_T, depth_T, "flex")
    whole = plan.pairs
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, 2, len(end_T), 16, generator=generator) for _ in range(3)]
    with torch.no_grad():
        got = attend_flex(*inputs, 0.3, plan, 40)
    scores = (inputs[0] @ inputs[1].mT * 0.3).masked_fill(~exact(end_T, depth_T, 40), float("-inf"))
    assert torch.allclose(got, scores.softmax(-1) @ inputs[2], atol=1e-5)
    assert set(plan.block_masks) == {None, 40} and plan.pairs == whole


def test_off_a_gpu_it_is_refused_and_never_chosen() -> None:
    cpu = torch.device("cpu")
    assert choose_kernel("auto", cpu, torch.float32) == "rectangles"
    with pytest.raises(ConfigurationError, match="needs a CUDA device"):
        choose_kernel("flex", cpu, torch.float32)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_outputs_and_gradients_are_those_of_the_dense_mask(dtype: torch.dtype) -> None:
    assert kernel_fault("flex", torch.device("cuda"), dtype) is None
    assert choose_kernel("auto", torch.device("cuda"), dtype) == "flex"
