"""What raw prompts are answered with: texts with the identity of their samples."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from art.engine.protocol import TopLogprobs
from art.rendering.chat import ChatRenderer


class TokenTexts:
    """Logprobs of one choice in OpenAI's legacy shape; `text_offset` counts characters from its beginning."""

    def __init__(self, renderer: ChatRenderer, *, start: int = 0) -> None:
        """`start`: characters that are told before the first token (an echoed prompt's)."""
        self._renderer = renderer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = start

    def logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[float | None], tops: Sequence[TopLogprobs] = ()
    ) -> dict[str, Any]:
        """The next tokens: their texts, logprobs and places. `tops`: the alternatives of each, or none."""
        tokens, offsets = [], []
        for token_id in token_ids:
            spelled = self._renderer.token_bytes(token_id)
            tokens.append(spelled.decode("utf-8", "replace"))
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(spelled))
        return {
            "text_offset": offsets,
            "token_logprobs": list(logprobs),
            "tokens": tokens,
            "top_logprobs": [self._alternatives(top) for top in tops] or None,
        }

    def _alternatives(self, top: TopLogprobs) -> dict[str, float]:
        """By text: of ids that are spelled alike (parts of characters), the most probable."""
        known: dict[str, float] = {}
        for token_id, logprob in top:
            known.setdefault(self._renderer.token_bytes(token_id).decode("utf-8", "replace"), logprob)
        return known


def prompt_logprobs_of(
    renderer: ChatRenderer, prompt_ids: Sequence[int], scores: Sequence[float]
) -> list[dict[str, Any] | None]:
    """As vLLM tells them: nothing of the first id, `{id: logprob and text}` of each other."""
    told: list[dict[str, Any] | None] = [None]
    for token_id, score in zip(prompt_ids[1:], scores, strict=True):
        text = renderer.token_bytes(token_id).decode("utf-8", "replace")
        told.append({str(token_id): {"logprob": score, "decoded_token": text}})
    return told
