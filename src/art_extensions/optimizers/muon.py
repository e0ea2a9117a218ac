"""Muon (Jordan, "Muon: an optimizer for hidden layers in neural networks", 2024), by torch.

A matrix moves by its momentum, whose singular values are brought near 1 by five steps of a Newton-Schulz
iteration, times 0.2 sqrt(max(rows, columns)): the update then has the size of AdamW's, so that AdamW's
learning rate and weight decay serve (Liu et al., "Muon is scalable for LLM training", arXiv:2502.16982). The
iteration computes in bfloat16. Vectors, stacks of matrices, embeddings and output layers have AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from art.training.optimizer import START, OptimizerKind, Parameters, make_optimizer


class MuonBesideAdamW(torch.optim.Optimizer):
    """Muon of some parameters and AdamW of the others, as one optimizer."""

    def __init__(self, matrices: list[torch.nn.Parameter], others: list[torch.nn.Parameter]) -> None:
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            muon = torch.optim.Muon(matrices, lr=0.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
            self._parts.append(muon)
        if others:
            self._parts.append(make_optimizer(others, START))
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Moves all parameters. closure: unused, as gradients are there already."""
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.state, part.param_groups = self.state, [group]  # which may have been put back
            part.step()


class MuonKind(OptimizerKind):
    """Muon for matrices, AdamW for what is none."""

    def make(self, parameters: Parameters, matrices: Collection[str]) -> torch.optim.Optimizer:
        return MuonBesideAdamW(
            [one for name, one in parameters.items() if name in matrices],
            [one for name, one in parameters.items() if name not in matrices],
        )

    def moments(self, parameter: torch.Tensor, *, is_matrix: bool) -> dict[str, torch.Tensor]:
        if not is_matrix:
            return super().moments(parameter, is_matrix=False)
        return {"momentum_buffer": torch.empty_like(parameter, device="meta")}


MUON = MuonKind()
