"""Muon against a plain Newton-Schulz iteration in float64, and AdamW where there is no matrix."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art.training.optimizer import Moments, step_optimizer
from art.wire.training import OptimizerSpec

BFLOAT16 = 0.06
"""The relative error of an update whose iteration computes with 8 bits of fraction."""
SPEC = OptimizerSpec(name="muon", learning_rate=1.0, weight_decay=0.1, momentum=0.9, max_grad_norm=1e9)


def orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """Five steps of Jordan's iteration, with its coefficients, written for any shape."""
    a, b, c = 3.4445, -4.7750, 2.0315
    found = matrix.double() / matrix.double().norm()
    for _ in range(5):
        left = found @ found.T
        found = a * found + (b * left + c * left @ left) @ found
    return found


def moved(matrix: torch.Tensor, gradients: list[torch.Tensor], rate: float) -> tuple[torch.Tensor, float]:
    """Muon with Nesterov's momentum and Moonshot's scale, from the papers; and how far it went in all."""
    length = 0.0
    momentum, found = torch.zeros_like(matrix, dtype=torch.float64), matrix.double()
    for gradient in gradients:
        momentum = SPEC.momentum * momentum + (1 - SPEC.momentum) * gradient.double()
        ahead = SPEC.momentum * momentum + (1 - SPEC.momentum) * gradient.double()
        scale = 0.2 * math.sqrt(max(matrix.shape))
        update = rate * scale * orthogonalized(ahead)
        length += float(update.norm())
        found = found * (1 - rate * SPEC.weight_decay) - update
    return found, length


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), st.booleans(), st.integers(0, 2**16))
def test_matrices_move_by_their_orthogonalized_momentum(
    rows: int, columns: int, tall: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (columns, rows) if tall else (rows, columns)
    start = torch.randn(shape, generator=generator)
    gradients = [torch.randn(shape, generator=generator) * 10.0**at for at in (0, -3, 1)]
    parameter, vector = torch.nn.Parameter(start.clone()), torch.nn.Parameter(torch.zeros(5))
    moments = Moments("muon", {"m": parameter, "v": vector}, {"m"})
    for gradient in gradients:
        parameter.grad = gradient.clone()
        step_optimizer(moments.optimizer, SPEC, learning_rate=0.02, loss=0.0)
    wanted, length = moved(start, gradients, 0.02)
    assert (parameter.double() - wanted).norm() <= BFLOAT16 * length


def test_an_update_has_the_size_of_adamws() -> None:
    """Liu et al.: 0.2, whatever the shape, so that AdamW's rates serve."""
    for shape in ((8, 256), (256, 8), (64, 64)):
        parameter = torch.nn.Parameter(torch.zeros(shape))
        moments = Moments("muon", {"m": parameter}, {"m"})
        parameter.grad = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 1e-4
        step_optimizer(moments.optimizer, SPEC, learning_rate=1.0, loss=0.0)
        assert float(parameter.detach().square().mean().sqrt()) == pytest.approx(0.2, rel=0.25)


def test_what_is_no_matrix_has_adamw() -> None:
    """A vector, a stack of matrices, and a matrix that is an embedding: to the last bit as AdamW alone."""
    generator = torch.Generator().manual_seed(1)
    starts = [torch.randn(shape, generator=generator) for shape in ((7,), (3, 4, 5), (6, 4))]
    ours = {str(at): torch.nn.Parameter(one.clone()) for at, one in enumerate(starts)}
    matrix = torch.nn.Parameter(torch.randn(4, 4, generator=generator))
    moments = Moments("muon", {**ours, "matrix": matrix}, {"matrix"})
    theirs = {name: torch.nn.Parameter(one.detach().clone()) for name, one in ours.items()}
    adamw = torch.optim.AdamW(
        list(theirs.values()), lr=0.02, betas=SPEC.betas, eps=SPEC.eps, weight_decay=0.1
    )
    for _ in range(3):
        for name, one in theirs.items():
            one.grad = torch.randn(one.shape, generator=generator)
            ours[name].grad = one.grad.clone()
        matrix.grad = torch.randn(4, 4, generator=generator)
        step_optimizer(moments.optimizer, SPEC, learning_rate=0.02, loss=0.0)
        adamw.step()
    for name, one in theirs.items():
        assert torch.equal(one, ours[name])
