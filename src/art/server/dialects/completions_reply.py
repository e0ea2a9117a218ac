"""What raw prompts are answered with: texts with the identity of their samples."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from art.engine.protocol import TopLogprobs
from art.rendering.chat import ChatRenderer
from art.server.dialects.chat_reply import token_name


class TokenTexts:
    """Logprobs of one choice in OpenAI's legacy shape; `text_offset` counts characters from its beginning."""

    def __init__(self, renderer: ChatRenderer, *, start: int = 0, as_ids: bool = False) -> None:
        """`start`: characters that are told before the first token (an echoed prompt's). `as_ids`: tokens
        are called by their ids.
        """
        self._renderer = renderer
        self._as_ids = as_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = start

    def logprobs(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float | None],
        tops: Sequence[TopLogprobs | None] = (),
    ) -> dict[str, Any]:
        """The next tokens: their texts, logprobs and places. `tops`: the alternatives of each, or none."""
        tokens, offsets = [], []
        for token_id in token_ids:
            spelled = self._renderer.token_bytes(token_id)
            tokens.append(token_name(token_id, spelled, self._as_ids))
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(spelled))
        return {
            "text_offset": offsets,
            "token_logprobs": list(logprobs),
            "tokens": tokens,
            "top_logprobs": [None if top is None else self._alternatives(top) for top in tops] or None,
        }

    def _alternatives(self, top: TopLogprobs) -> dict[str, float]:
        """By text: of ids that are spelled alike (parts of characters), the most probable."""
        known: dict[str, float] = {}
        for token_id, logprob in top:
            known.setdefault(
                token_name(token_id, self._renderer.token_bytes(token_id), self._as_ids), logprob
            )
        return known
