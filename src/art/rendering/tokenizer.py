"""A tokenizer without the layers that cost time: text to ids, ids to text, ids to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from art.rendering.special_tokens import SpecialTokens, mark

_CACHED_CHARACTERS = 2000
"""Longer texts are not kept: they rarely come twice."""
_LONG = 20_000
"""Characters of a text that is encoded as a batch of one, without the interpreter's lock."""


class FastTokenizer:
    """The backend of a `PreTrainedTokenizerFast`, spoken to directly.

    It keeps the `Tokenizer` protocol of `renderers`, without character offsets: they only serve to mask text
    for supervised training there, and they double the cost of a rendering.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.name_or_path: str = tokenizer.name_or_path
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self.eos_token_id: int | None = tokenizer.eos_token_id
        self.settings: dict[str, Any] = {
            name: value for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)
        }
        """Special tokens by what they are for, and the chat template: nothing about files."""
        if isinstance(tokenizer.chat_template, str):
            self.settings["chat_template"] = tokenizer.chat_template
        self.all_special_tokens: list[str] = list(tokenizer.all_special_tokens)
        self._backend = tokenizer.backend_tokenizer
        self.special = SpecialTokens(self._backend)
        self._kept = lru_cache(maxsize=4096)(self._encode)
        self._ids: dict[str, int | None] = {}
        """Of the few tokens that are asked for by name, with every reply."""
        self._bytes: dict[int, bytes] = {}
        decoder = self._backend.decoder
        self._byte_level = decoder is not None and "ByteLevel" in repr(decoder)

    @cached_property
    def longest_token(self) -> int:
        """Characters that one id stands for at most, with room for a normaliser that shortens texts."""
        return 2 * max(map(len, self._backend.get_vocab()))

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        """Ids of a text, with nothing added around it.

        While texts are marked (`SpecialTokens.as_text`), what they spell is no special token.
        """
        if (marked := mark()) is not None:
            return self.special.encode(text, marked)
        if len(text) > _CACHED_CHARACTERS:
            return list(self._encode(text))
        return list(self._kept(text))

    def encode_whole(self, text: str) -> list[int]:
        """Ids of a text, with the special tokens that the tokenizer's settings put around it."""
        return list(self._backend.encode(text, add_special_tokens=True).ids)

    def _encode(self, text: str) -> tuple[int, ...]:
        if len(text) > _LONG:
            (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
            return tuple(encoded.ids)
        return tuple(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int] | int, *args: Any, **kwargs: Any) -> str:
        """Text of ids, special tokens included."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if (marked := mark()) is not None:
            return self.special.decode(ids, marked)
        return str(self._backend.decode(ids, skip_special_tokens=False))

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> Any:
        """The id of a token (the unknown token's id, or None, where there is none)."""
        if isinstance(tokens, str):
            if tokens not in self._ids:
                found = self._backend.token_to_id(tokens)
                self._ids[tokens] = self.unk_token_id if found is None else found
            return self._ids[tokens]
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one id stands for: part of a character where the vocabulary is byte-level."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if self._byte_level and token is not None and token not in self.all_special_tokens:
            table = _byte_of_character()
            spelled = [table.get(character) for character in token]
            if None not in spelled:
                return bytes(value for value in spelled if value is not None)
        return self.decode([token_id]).encode()


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """The printable stand-ins that byte-level BPE uses for bytes (GPT-2's table), reversed."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(value): value for value in printable}
    moved = (value for value in range(256) if value not in set(printable))
    table.update({chr(256 + number): value for number, value in enumerate(moved)})
    return table
