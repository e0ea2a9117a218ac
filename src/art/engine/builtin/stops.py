"""Find stop strings in a growing completion without decoding it again from its start."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from art.errors import RequestError

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decodes(Protocol):
    def decode(self, token_ids: list[int]) -> str: ...


class StopStrings:
    """The strings of one request and the text decoded so far.

    A token's text can depend on its neighbour and may be a part of a character, so a short tail of ids is
    decoded twice, with and without the new ones, and the difference is the new text (the scheme of vLLM and
    TGI).
    """

    def __init__(self, strings: tuple[str, ...], tokenizer: Decodes) -> None:
        self.strings = strings
        self.tokenizer = tokenizer
        self.keep = max(len(string) for string in strings) - 1
        self.tail = ""
        """The end of the settled text, long enough to begin any stop string."""
        self.context = 0
        self.settled = 0

    def find(self, completion: list[int]) -> str | None:
        """The first stop string that the completion contains now, or None."""
        before = self.tokenizer.decode(completion[self.context : self.settled])
        after = self.tokenizer.decode(completion[self.context :])
        text = self.tail + after[len(before) :]
        found = [(text.find(string), string) for string in self.strings if string in text]
        if found:
            return min(found)[1]
        if len(after) > len(before) and not after.endswith(REPLACEMENT):
            self.context, self.settled = self.settled, len(completion)
            self.tail = text[-self.keep :] if self.keep else ""
        return None

    def pass_over(self, completion: list[int]) -> None:
        """What the completion says so far ends nothing."""
        self.context, self.settled, self.tail = self.settled, len(completion), ""


class TokenizerLoader:
    """Loads the model folder's tokenizer when the first stop string asks for it."""

    def __init__(self, base_model: str) -> None:
        self.base_model = base_model
        self._tokenizer: Decodes | None = None

    def tokenizer(self) -> Decodes:
        """Raises: RequestError when the model has no fast tokenizer."""
        if self._tokenizer is None:
            self._tokenizer = _FastTokenizer(self.base_model)
        return self._tokenizer


class _FastTokenizer:
    def __init__(self, base_model: str) -> None:
        from transformers import PreTrainedTokenizerFast

        try:
            self._fast = PreTrainedTokenizerFast.from_pretrained(
                base_model, local_files_only=Path(base_model).is_dir()
            )
        except (OSError, ValueError) as error:
            raise RequestError(
                f"stop strings need a tokenizer, and {base_model!r} has none that loads ({error}); "
                "use stop_token_ids",
                status=400,
                code="unsupported_stop",
            ) from error

    def decode(self, token_ids: list[int]) -> str:
        """Special tokens are written out, so that they can be stop strings too."""
        return str(
            self._fast.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )
