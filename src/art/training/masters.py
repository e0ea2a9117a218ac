"""Weights in float32 behind a model that computes in bfloat16, where small updates would round to nothing.

A gradient moves from the model to its master as soon as it is accumulated, and adds up there over the
micro-batches in float32 (Micikevicius et al., "Mixed precision training", arXiv:1710.03740).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch.utils.hooks import RemovableHandle


class Masters:
    """What an optimizer moves: parameters that are exact enough themselves, masters of the others."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self.exact = {key: _master(one) for key, one in parameters.items()}
        """By the parameters' names."""
        self._coarse = [key for key, one in parameters.items() if self.exact[key] is not one]
        self._hooks: list[RemovableHandle] = []

    def train(self, wanted: bool) -> None:
        """Whether the model's parameters have gradients, which are collected."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for parameter in self._parameters.values():
            parameter.requires_grad_(wanted)
        if wanted:
            for key in self._coarse:
                hook = partial(self._collect, self.exact[key])
                self._hooks.append(self._parameters[key].register_post_accumulate_grad_hook(hook))

    @torch.no_grad()
    def refresh(self) -> None:
        """Give the model what the masters hold."""
        for key in self._coarse:
            self._parameters[key].copy_(self.exact[key])

    @staticmethod
    def _collect(master: torch.nn.Parameter, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            gradient = parameter.grad.to(master.dtype)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None


def _master(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return torch.nn.Parameter(parameter.detach().to(torch.float32))
