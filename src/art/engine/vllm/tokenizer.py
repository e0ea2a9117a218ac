"""The id that vLLM itself ends a text with."""

from __future__ import annotations

import json

from art.errors import ConfigurationError


def end_of_text(base_model: str) -> int | None:
    """The tokenizer's `eos_token` as an id; None when it has none. `base_model`: a folder, or a hub name.

    Raises: ConfigurationError when the tokenizer's files cannot be had.
    """
    from tokenizers import Tokenizer

    from art.engine.vllm.model_config import model_file

    config = json.loads(model_file(base_model, "tokenizer_config.json").read_text(encoding="utf-8"))
    token = config.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        return None
    try:
        found: int | None = Tokenizer.from_file(str(model_file(base_model, "tokenizer.json"))).token_to_id(
            text
        )
    except ValueError as error:
        raise ConfigurationError(f"the tokenizer of {base_model!r} cannot be read: {error}") from error
    return found
