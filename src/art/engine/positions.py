"""How long a row may be before a model's rotary embedding depends on how long it is.

`dynamic` and `longrope` embeddings choose their frequencies by the longest position of a forward pass, so
that a token's keys change with the length of what stands beside or after it. Up to the length that the model
was first trained with, they do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

BY_LENGTH = frozenset({"dynamic", "longrope"})


def longest_fixed(config: Any) -> int | None:
    """Tokens of a path up to which positions have one meaning; None: any number.

    `config` is that of the text model. Families with two kinds of layers have one embedding each.
    """
    limits = [
        int(
            embedding.get("original_max_position_embeddings")
            or getattr(config, "original_max_position_embeddings", None)
            or config.max_position_embeddings
        )
        for embedding in _embeddings(getattr(config, "rope_parameters", None))
        if embedding.get("rope_type") in BY_LENGTH
    ]
    return min(limits, default=None)


def _embeddings(parameters: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(parameters, Mapping):
        if "rope_type" in parameters:
            yield parameters
        else:
            for inner in parameters.values():
                yield from _embeddings(inner)
