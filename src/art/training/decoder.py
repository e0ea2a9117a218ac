"""The part of a causal language model that ends in hidden states."""

from __future__ import annotations

from typing import Any

from art.errors import ConfigurationError


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
