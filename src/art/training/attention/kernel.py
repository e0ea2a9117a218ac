"""Which tree attention this machine can run: checked by computing, not by version numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch

from art.errors import ConfigurationError
from art.training.attention.dense import attend_dense
from art.training.attention.flex import FLEX_BLOCK, attend_flex
from art.training.attention.plan import plan_attention
from art.training.attention.rectangles import attend_rectangles

LOG = logging.getLogger(__name__)

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest relative difference between the kernels' outputs and gradients and the reference's."""


KERNELS = ("rectangles", "flex", "dense")
FASTEST = {"cpu": "rectangles", "cuda": "flex"}
"""By kind of device. Elsewhere: the dense mask."""


def choose_kernel(asked: str, device: torch.device, dtype: torch.dtype) -> str:
    """One of `KERNELS`. `auto` takes the device's fastest, or, with a notice, the dense mask where that one
    fails its check.

    Raises ConfigurationError when what was asked for cannot run here, or the name is unknown.
    """
    if asked not in ("auto", *KERNELS):
        raise ConfigurationError(f"Unknown attention {asked!r}. Known: auto, {', '.join(sorted(KERNELS))}.")
    wanted = FASTEST.get(device.type, "dense") if asked == "auto" else asked
    if wanted == "dense":
        return wanted
    fault = fault_of(wanted, device, dtype)
    if fault is None:
        return wanted
    if asked == wanted:
        raise ConfigurationError(
            f"Tree attention by {asked!r} cannot run here: {fault}. Use attention='dense'."
        )
    LOG.warning("Tree attention falls back to a dense mask, which is slower: %s", fault)
    return "dense"


def fault_of(kernel: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why this kernel cannot be used here, or None when it agrees with the reference."""
    if kernel == "flex" and device.type != "cuda":
        return f"FlexAttention with gradients needs a CUDA device, this one is {device.type!r}"
    if kernel == "rectangles" and device.type != "cpu":
        return f"its kernels are torch's CPU kernels, the device is {device.type!r}"
    if dtype not in TOLERANCE:
        return f"dtype {dtype} is not among {sorted(str(known) for known in TOLERANCE)}"
    try:
        difference = _difference(kernel, device, dtype)
    except (AttributeError, ImportError, RuntimeError, TypeError) as error:
        return f"torch {torch.__version__} has other flash attention operations ({error})"
    if not difference <= TOLERANCE[dtype]:
        return f"torch {torch.__version__} computes something else (relative difference {difference:.1e})"
    return None


def _difference(kernel: str, device: torch.device, dtype: torch.dtype) -> float:
    """Largest relative difference of outputs and gradients on a small tree with every kind of piece."""
    end_T = np.array([13, 13, 13, 13, 11, 9, 9, 9, 9, 11, 11, 13, 13])
    if kernel == "flex":
        end_T = np.repeat(end_T, FLEX_BLOCK // 4) * (FLEX_BLOCK // 4)  # several of its blocks
    size, width = len(end_T), 8 if kernel == "rectangles" else 64
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, size, width) for heads in (4, 2, 2, 4)]
    made = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    *inputs, weight = made
    results = []
    attends: dict[str, Callable[..., torch.Tensor]]
    attends = {"rectangles": attend_rectangles, "flex": attend_flex, "dense": attend_dense}
    for name in (kernel, "dense"):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        plan = plan_attention(end_T, np.arange(size), name, dtype=dtype, device=device, block=2, long=2)
        out = attends[name](*leaves, 0.5, plan)
        results.append([out, *torch.autograd.grad((out * weight).sum(), leaves)])
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in zip(*results, strict=True))
