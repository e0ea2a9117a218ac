"""The images of a batch as embeddings: what a vision-language model's decoder reads in their tokens' places.

The tower that makes them is frozen, so each image is computed once for a batch, without a gradient; LoRA
adapts the decoder alone. Pictures come in the size that the tower wants (`art.rendering.images`): nothing is
resized here, and nothing was by the engine, so that both see the same pixels.

Letters: T = tokens of a micro-batch, N = tokens of an image, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from io import BytesIO
from typing import Any, Protocol

import torch

from art.errors import ConfigurationError, TokenMismatchError
from art.wire.images import image_runs


class Seeing(Protocol):
    """The part of a policy that images need."""

    causal_lm: Any
    name: str
    source: str | None

    def stock_attention(self) -> AbstractContextManager[None]:
        """Uses the model's own attention inside the block."""
        ...


class ImageEmbeddings:
    """Of the images of one batch at a time."""

    def __init__(self, policy: Seeing) -> None:
        self._policy = policy
        self._processor: Any = None
        self._embedded: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def keep(self, images: Mapping[str, bytes]) -> None:
        """Compute the embeddings of these images, PNG files by their names, and forget all others.

        Raises ConfigurationError for a model that sees none.
        """
        self._embedded = {name: one for name, one in self._embedded.items() if name in images}
        for name, file in images.items():
            if name not in self._embedded:
                with self._policy.stock_attention():
                    self._embedded[name] = self._embed(file)

    def inputs(self, tokens_T: torch.Tensor) -> torch.Tensor:
        """Returns what the decoder reads [T, D]: the embeddings of ids, and of images where ids are negative.

        Raises TokenMismatchError where an image is missing, or has another number of tokens.
        """
        embedding = self._policy.causal_lm.get_input_embeddings()
        inputs_TD: torch.Tensor = embedding(tokens_T.clamp(min=0))
        try:
            runs = image_runs(tokens_T.tolist())
        except ValueError as error:
            raise TokenMismatchError(f"The batch holds ids that stand for nothing: {error}") from error
        if not runs:
            return inputs_TD
        inputs_TD = inputs_TD.clone()
        for run in runs:
            image_ND = self._embedded.get(run.name)
            tokens = 0 if image_ND is None else len(image_ND)
            if image_ND is None or tokens != run.stop - run.start:
                raise TokenMismatchError(
                    f"The batch has {run.stop - run.start} tokens of the image {run.name}, "
                    f"and {tokens} embeddings of it."
                )
            inputs_TD[run.start : run.stop] = image_ND.to(inputs_TD.dtype)
        return inputs_TD

    def _embed(self, file: bytes) -> torch.Tensor:
        from PIL import Image

        causal_lm = self._policy.causal_lm
        tower: Any = getattr(causal_lm, "model", None)
        if not hasattr(tower, "get_image_features"):
            raise ConfigurationError(f"{self._policy.name!r} sees no images; this batch has some.")
        if self._processor is None:
            self._processor = _processor(str(self._policy.source))
        seen = self._processor(images=[Image.open(BytesIO(file), formats=["PNG"])], return_tensors="pt")
        device = causal_lm.get_input_embeddings().weight.device
        (image_ND,) = tower.get_image_features(**seen.to(device)).pooler_output
        return torch.as_tensor(image_ND)


def _processor(source: str) -> Any:
    """The model's own, which is left nothing but to rescale and normalize."""
    from transformers import AutoImageProcessor

    return AutoImageProcessor.from_pretrained(
        source, backend="pil", trust_remote_code=False, do_resize=False, do_image_splitting=False
    )
