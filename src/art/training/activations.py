"""Activation checkpointing: decoder layers keep their input only and are computed again in the backward pass.

transformers has the same behind `activation_checkpointing_enable`, but only for modules in train mode, and
ours stay in evaluation mode so that no dropout of the base model acts. torch's `checkpoint` is put around the
layers' `forward` instead, for one forward pass; keyword arguments (the tree's plan) go through it untouched,
and LoRA's dropout draws the same numbers again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


def decoder_layers(causal_lm: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers that may be computed again: the outermost of those that transformers marks for it."""
    layers: list[torch.nn.Module] = []
    inside: set[torch.nn.Module] = set()
    for module in causal_lm.modules():  # parents come before their children
        if isinstance(module, GradientCheckpointingLayer) and module not in inside:
            layers.append(module)
            inside.update(module.modules())
    return layers


@contextmanager
def recomputed(layers: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Within, a forward pass of these layers keeps their inputs only. The backward pass may come after."""
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward
