"""A LoRA that changes what the model computes, before anything is trained: to see whether the engine applies
one as the trainer does. A fresh adapter shows nothing, its B being zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from art.training.policy import Policy
from art.training.weights import Weights
from art.wire.training import LoraSpec, ProbeReply

STRENGTH = 0.1
"""Frobenius norm of each layer's change, relative to the layer's own weight."""
_NAME = "probe"


def probe(
    policy: Policy,
    weights: Weights,
    lora: LoraSpec | None,
    folder: Path,
    rows: Sequence[Sequence[int]],
    *,
    seed: int,
    budget: int,
) -> ProbeReply:
    """Logprobs of rows under the base, and under a LoRA with random B, which is written into a new folder.

    `lora` None (all weights are trained): under the base alone, and nothing is written. Afterwards weights
    are to be activated before anything is computed. Raises ConfigurationError for unknown targets.
    """
    if lora is None:
        weights.rest()
        return ProbeReply(base=policy.row_logprobs(rows, budget=budget))
    weights.attach(_NAME, lora, seed=seed)
    try:
        _fill(policy.causal_lm, seed)
        with weights.disabled():
            base = policy.row_logprobs(rows, budget=budget)
        scores = policy.row_logprobs(rows, budget=budget)
        folder.mkdir(parents=True)
        weights.save(_NAME, folder)
    finally:
        weights.remove(_NAME)
    return ProbeReply(base=base, probe=scores)


@torch.no_grad()
def _fill(causal_lm: torch.nn.Module, seed: int) -> None:
    """Draw each B, so large that ||scaling B A|| is about `STRENGTH` ||W||."""
    generator = torch.Generator().manual_seed(seed)
    for _, module in sorted(causal_lm.named_modules()):
        if _NAME not in getattr(module, "lora_B", {}):
            continue
        down, up = module.lora_A[_NAME].weight, module.lora_B[_NAME].weight
        drawn = torch.randn(up.shape, generator=generator)
        # The expected norm of a product with independent rows: ||B A|| = sd(B) sqrt(out) ||A||.
        norm = float(down.float().norm()) * up.shape[0] ** 0.5 * module.scaling[_NAME]
        size = STRENGTH * float(module.get_base_layer().weight.float().norm()) / norm
        up.copy_(drawn * size)
