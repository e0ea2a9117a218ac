"""Which tree attention this machine can run: checked by computing, not by version numbers."""

from __future__ import annotations

import logging

import numpy as np
import torch

from art.errors import ConfigurationError
from art.training.attention import dense, rectangles
from art.training.attention.plan import plan_attention

LOG = logging.getLogger(__name__)

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest relative difference between the kernels' outputs and gradients and the reference's."""


def choose_kernel(asked: str, device: torch.device, dtype: torch.dtype) -> str:
    """`rectangles` or `dense`. `auto` falls back to dense, with a notice, where the private ops of torch
    changed.

    Raises ConfigurationError when `rectangles` was asked for and cannot run here, or the name is unknown.
    """
    if asked not in ("auto", "rectangles", "dense"):
        raise ConfigurationError(f"Unknown attention {asked!r}. Known: auto, dense, rectangles.")
    if asked == "dense" or (asked == "auto" and device.type != "cpu"):
        return "dense"
    fault = rectangle_fault(device, dtype)
    if fault is None:
        return "rectangles"
    if asked == "rectangles":
        raise ConfigurationError(
            f"Tree attention by rectangles cannot run here: {fault}. Use attention='dense'."
        )
    LOG.warning("Tree attention falls back to a dense mask, which is slower: %s", fault)
    return "dense"


def rectangle_fault(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the rectangle kernels cannot be used here, or None when they agree with the reference."""
    if device.type != "cpu":
        return f"its kernels are torch's CPU kernels, the device is {device.type!r}"
    if dtype not in TOLERANCE:
        return f"dtype {dtype} is not among {sorted(str(known) for known in TOLERANCE)}"
    try:
        difference = _difference(dtype)
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"torch {torch.__version__} has other flash attention operations ({error})"
    if not difference <= TOLERANCE[dtype]:
        return f"torch {torch.__version__} computes something else (relative difference {difference:.1e})"
    return None


def _difference(dtype: torch.dtype) -> float:
    """Largest relative difference of outputs and gradients on a small tree with every kind of piece."""
    end_T = np.array([13, 13, 13, 13, 11, 9, 9, 9, 9, 11, 11, 13, 13])
    generator = torch.Generator().manual_seed(0)
    results = []
    inputs = [torch.randn(1, heads, 13, 8, generator=generator).to(dtype) for heads in (4, 2, 2)]
    weight = torch.randn(1, 4, 13, 8, generator=generator).to(dtype)
    for module, kernel in ((rectangles, "rectangles"), (dense, "dense")):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        out = module.attend(
            *leaves, 0.5, plan_attention(end_T, np.arange(13), kernel, dtype=dtype, block=2, long=2)
        )
        results.append([out, *torch.autograd.grad((out * weight).sum(), leaves)])
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in zip(*results, strict=True))
