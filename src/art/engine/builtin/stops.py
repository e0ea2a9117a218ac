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
        self.passed = 0
        """Characters of the text that is not settled which were passed over."""

    def find(self, completion: list[int]) -> str | None:
        """The first stop string that the completion contains now, or None. One that ends in text that was
        passed over is none.
        """
        new = self._new(completion)
        text, old = self.tail + new, len(self.tail) + self.passed
        places = [(text.find(string, max(0, old - len(string) + 1)), string) for string in self.strings]
        found = [place for place in places if place[0] >= 0]
        if found:
            return min(found)[1]
        self._settle(completion, new)
        return None

    def pass_over(self, completion: list[int]) -> None:
        """What the completion says so far ends nothing, but a stop string may begin in it."""
        new = self._new(completion)
        self.passed = len(new.rstrip(REPLACEMENT))
        self._settle(completion, new)

    def _new(self, completion: list[int]) -> str:
        before = self.tokenizer.decode(completion[self.context : self.settled])
        return self.tokenizer.decode(completion[self.context :])[len(before) :]

    def _settle(self, completion: list[int], new: str) -> None:
        if new and not new.endswith(REPLACEMENT):
            self.context, self.settled, self.passed = self.settled, len(completion), 0
            self.tail = (self.tail + new)[-self.keep :] if self.keep else ""


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
