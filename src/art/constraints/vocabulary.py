"""A model's tokens as `llguidance` wants them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from art.errors import RequestError

_END = "<|end of the constrained text|>"


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer's JSON, in which every marker is special, and the id that ends a constrained text."""

    text: str
    end: int

    @cached_property
    def tokens(self) -> Any:
        """The `LLTokenizer`. Takes a second for 150,000 tokens."""
        from llguidance import LLTokenizer

        return LLTokenizer(self.text, eos_token=self.end)


def read_vocabulary(model: str) -> Vocabulary:
    """The vocabulary of a model folder or hub name.

    Added tokens that are no white space (`<tool_call>`, `<|im_end|>`) are markers, never text: a grammar has
    to name them by id. Raises: RequestError when the model has no fast tokenizer.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"constraints need a fast tokenizer beside the model, and {model!r} has none: {error}",
            status=400,
            code="unsupported_parameter",
        ) from error
    backend = tokenizer.backend_tokenizer
    # An end of its own that no model has: what ends a text is the request's to say.
    backend.add_special_tokens([_END])
    written = json.loads(backend.to_str())
    written["truncation"] = written["padding"] = None
    for added in written["added_tokens"]:
        added["special"] = added["special"] or bool(added["content"].strip())
    return Vocabulary(json.dumps(written), backend.token_to_id(_END))
