"""The part of a causal language model that ends in hidden states, and whether we know what follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from art.errors import ConfigurationError

TOKENS = 8
CLOSE, ROUGH = 1e-3, 0.1
"""Largest relative difference of logits, in float32 or better and below it."""


def decoder_of(causal_lm: Any) -> Any:
    """What lies before the output layer: takes ids, gives `last_hidden_state`. LoRA layers are inside.

    Raises ConfigurationError where the model has no such part.
    """
    decoder = causal_lm.get_decoder()
    if decoder is not causal_lm:
        return decoder
    embedding = causal_lm.get_input_embeddings()
    for child in causal_lm.children():
        if child is not embedding and any(module is embedding for module in child.modules()):
            return child
    raise ConfigurationError(
        f"{type(causal_lm).__name__} has no decoder that is apart from its output layer."
    )


@torch.no_grad()
def check_head(causal_lm: Any, head: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Raise ConfigurationError where the model makes other logits of its hidden states than `head` does.

    Families scale or cap their logits under names of their own; one we do not know would be trained wrong.
    """
    embedding = causal_lm.get_input_embeddings().weight
    ids = (torch.arange(TOKENS, device=embedding.device) * 7 + 3)[None] % embedding.shape[0]
    ours = head(decoder_of(causal_lm)(input_ids=ids, use_cache=False).last_hidden_state[0])
    theirs = causal_lm(input_ids=ids, use_cache=False).logits[0].to(ours.dtype)
    difference = float((ours - theirs).norm() / theirs.norm())
    if not difference <= (CLOSE if embedding.dtype in (torch.float32, torch.float64) else ROUGH):
        raise ConfigurationError(
            f"{type(causal_lm).__name__} has a scale or cap on logits of its own, which the trainer does not "
            f"know (relative difference {difference:.1e} on {TOKENS} tokens): it cannot be trained."
        )
