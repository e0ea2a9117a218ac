"""A tokenizer without the layers that cost time: text to ids, ids to text, ids to bytes. Text of messages
stays text.

What spells a special token in a message is encoded as the characters that it is:

    message     {"role": "user", "content": "hi<|im_end|>"}
    marked      "hi<*|im_end|>"                      * is a character that no text of the conversation holds
    rendered    "<|im_start|>user\\nhi<*|im_end|><|im_end|>\\n"
    encoded     the format's own tokens as ever; what stands between two of them loses its marks, and is
                encoded by the same tokenizer without special tokens

So neither a renderer nor a template has to know of it, and a conversation that holds no such text is encoded
as if nothing of this were here.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import Any

from art.errors import ConfigurationError
from art.process.imports import import_lock

_MARK: ContextVar[str | None] = ContextVar("the mark of a rendering", default=None)
_MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Unicode's noncharacters, which are for use inside of programs."""
_START = "\U0010fffe"
"""Stands before a stretch that does not begin a text: some tokenizers write a space where a text begins."""
_HTML = re.compile(
    r"</?(table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup|code)>"
)
"""Added tokens of some vocabularies that are words of a text, not markers."""
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_ROUNDS, _LONGEST = 8, 1000
"""Marks of one text; characters of a special token, whose every beginning is kept."""


def current_mark() -> str | None:
    """The mark of the rendering that goes on; None where no text of it spells a special token."""
    return _MARK.get()


@contextmanager
def marks_allowed(chosen: str) -> Iterator[None]:
    """Allows this mark in text that is encoded inside the block."""
    token = _MARK.set(chosen)
    try:
        yield
    finally:
        _MARK.reset(token)


class SpecialTokens:
    """The special tokens of one tokenizer, and how texts are kept from spelling them."""

    def __init__(self, backend: Any) -> None:
        """`backend`: a `tokenizers.Tokenizer`."""
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        special = {number: token for number, token in added.items() if _is_marker(token)}
        self._ids = frozenset(special)
        self._words = {token.content: number for number, token in added.items() if number not in special}
        self._word_tokens = [token for number, token in added.items() if number not in special]
        spelled = sorted({token.content for token in special.values()}, key=len, reverse=True)
        self._begins = re.compile(f"(?=(?:{'|'.join(map(re.escape, spelled))}))") if spelled else None
        self._longest = max(map(len, spelled), default=0)
        if self._longest > _LONGEST:
            raise ConfigurationError(f"a special token has {self._longest:,} characters; {_LONGEST} at most")
        self._parts = frozenset(text[:end] for text in spelled for end in range(1, len(text)))
        self._normalized = backend.normalizer is not None and any(t.normalized for t in special.values())

    # Conversations

    @contextmanager
    def as_text(
        self, messages: Sequence[Any], tools: Sequence[Any] | None
    ) -> Iterator[tuple[Sequence[Any], Sequence[Any] | None]]:
        """The conversation for a renderer; what is encoded meanwhile has no special token of its texts.

        Raises: ValueError when they cannot be kept out.
        """
        texts = list(_texts([messages, tools]))
        if not any(self._places(text) for text in texts):
            yield messages, tools
            return
        chosen = next((c for c in _MARKS if not any(c in t or _escaped(c) in t for t in texts)), None)
        if chosen is None:
            raise ValueError("they hold special tokens as text, and each of Unicode's noncharacters besides")
        with marks_allowed(chosen):
            write = self._writer(chosen)
            yield [_message(message, write) for message in messages], _mapped(tools, write)

    def require_text(self, ids: Sequence[int]) -> None:
        """Raises: ValueError when a mark got into these ids: the format has a tokenizer of its own."""
        chosen = current_mark()
        if chosen is not None and chosen in self._backend.decode(list(ids), skip_special_tokens=False):
            raise ValueError(
                "they hold special tokens of the model as text, which this format cannot write as text: take "
                "them out, or register the model with special_tokens_in_text='parse'"
            )

    def _writer(self, chosen: str) -> Callable[[str], str]:
        return lambda text: self.marked(text, chosen)

    def marked(self, text: str, chosen: str) -> str:
        """The text with a mark behind the first character of each special token that it spells.

        One that it only begins is broken too: the text may be put before another. Raises: ValueError.
        """
        for _ in range(_ROUNDS):
            places = self._places(text)
            if not places:
                return text
            ends = [0, *(place + 1 for place in places), len(text)]
            text = chosen.join(text[start:end] for start, end in pairwise(ends))
        raise ValueError(f"a special token in {text[:100]!r} cannot be written as text")

    def _places(self, text: str) -> list[int]:
        """Returns the starts of special tokens."""
        if self._begins is None:
            return []
        places = {found.start() for found in self._begins.finditer(text)}
        tail = range(max(0, len(text) - self._longest + 1), len(text))
        places.update(place for place in tail if text[place:] in self._parts)
        if self._normalized:
            found = self._backend.encode(text, add_special_tokens=False)
            for number, (start, end) in zip(found.ids, found.offsets, strict=True):
                if number in self._ids and end > start + 1:
                    places.add(start)
        return sorted(places)

    # Ids

    def encode(self, text: str, chosen: str) -> list[int]:
        """Ids of a text that may hold marks. Raises: ValueError."""
        text = text.replace(_escaped(chosen), chosen)
        found = self._backend.encode(text, add_special_tokens=False)
        pairs = zip(found.ids, found.offsets, strict=True)
        runs = [(special, list(run)) for special, run in groupby(pairs, lambda one: one[0] in self._ids)]
        starts = [run[0][1][0] for _, run in runs] + [len(text)]
        ids: list[int] = []
        at = 0
        for (special, run), end in zip(runs, starts[1:], strict=True):
            piece = "" if special else text[at:end]
            if chosen in piece:
                ids += self._plainly(piece, at > 0, chosen)
            else:
                ids += [number for number, _ in run]
            at = run[-1][1][1] if special else end
        return ids

    def decode(self, ids: Sequence[int], chosen: str) -> str:
        """The text of ids, with marks in what only looks like a special token."""
        runs = [(special, list(run)) for special, run in groupby(ids, self._ids.__contains__)]
        texts = [str(self._backend.decode(run, skip_special_tokens=False)) for _, run in runs]
        marked = [
            text if special else self.marked(text, chosen)
            for text, (special, _) in zip(texts, runs, strict=True)
        ]
        if marked == texts:
            return str(self._backend.decode(list(ids), skip_special_tokens=False))
        return "".join(marked)

    def _plainly(self, piece: str, behind: bool, chosen: str) -> list[int]:
        """Ids of a stretch as if there were no special tokens. Raises: ValueError."""
        ids = self._plain_ids(piece.replace(chosen, ""), behind)
        if not self._ids.isdisjoint(ids):  # the vocabulary itself has the word
            parts = piece.split(chosen)
            ids = [
                number for n, part in enumerate(parts) for number in self._plain_ids(part, behind or n > 0)
            ]
        if not self._ids.isdisjoint(ids):
            raise ValueError(f"the tokenizer has no other spelling of {piece.replace(chosen, '')[:100]!r}")
        return ids

    def _plain_ids(self, text: str, behind: bool) -> list[int]:
        first, *rest = text.split(_START)  # a text that holds it does not mean it
        ids = self._stretch_ids(first, behind) if first else []
        for part in rest:
            ids += self._backend.encode(_START, add_special_tokens=False).ids
            ids += self._stretch_ids(part, behind=True) if part else []
        return ids

    def _stretch_ids(self, text: str, behind: bool) -> list[int]:
        found = self._plain.encode(_START + text if behind else text, add_special_tokens=False)
        ids = [self._words.get(token, number) for number, token in zip(found.ids, found.tokens, strict=True)]
        return ids[1:] if behind else ids

    @cached_property
    def _plain(self) -> Any:
        """The tokenizer without its special tokens. It shares the vocabulary."""
        with import_lock:
            from tokenizers import AddedToken, Tokenizer

        plain = Tokenizer(self._backend.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(self._backend, part) is not None:
                setattr(plain, part, getattr(self._backend, part))
        plain.add_tokens(self._word_tokens)
        plain.add_special_tokens([AddedToken(_START, special=True, normalized=False)])
        return plain


def _is_marker(token: Any) -> bool:
    """A token that shapes a conversation. Others are added for what they say: `<b>`, white space, names."""
    text = token.content
    if len(text) < 2 or not text.strip(" \t\r\n▁"):
        return False
    framed = not text[0].isalnum() and not text[-1].isalnum() and any(map(str.isalnum, text))
    return bool(token.special) or (framed and _HTML.fullmatch(text) is None)


def _escaped(chosen: str) -> str:
    """Returns the text as JSON of ASCII spells it."""
    return json.dumps(chosen)[1:-1]


def _texts(value: Any) -> Iterator[str]:
    """Every string within a value, keys of objects and what JSON spells included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from _texts(name)
            yield from _texts(one)
            if name == "arguments" and isinstance(one, str):
                yield from _texts(_read(one))
    elif isinstance(value, Sequence):
        for one in value:
            yield from _texts(one)


def _message(message: Any, write: Callable[[str], str]) -> Any:
    """A thought that an assistant's content begins with stays one: formats read it there."""
    content = message.get("content")
    thought = None
    if message.get("role") == "assistant" and isinstance(content, str):
        thought = _THOUGHT.match(content)
    written = _mapped({name: one for name, one in message.items() if name != "role"}, write)
    if thought is not None:
        space, _, rest = thought[0].removesuffix("</think>").partition("<think>")
        inside, behind = write(rest), write(content[thought.end() :])
        written["content"] = f"{space}<think>{inside}</think>{behind}"
    return {"role": message["role"], **written} if "role" in message else written


def _mapped(value: Any, write: Callable[[str], str]) -> Any:
    """The value with every string in it written anew."""
    if isinstance(value, str):
        return write(value)
    if isinstance(value, Mapping):
        return {
            write(name) if isinstance(name, str) else name: _arguments(one, write)
            if name == "arguments" and isinstance(one, str)
            else _mapped(one, write)
            for name, one in value.items()
        }
    if isinstance(value, Sequence):
        return [_mapped(one, write) for one in value]
    return value


def _arguments(text: str, write: Callable[[str], str]) -> str:
    """Arguments as their JSON is spelled, if that shows each special token; else spelled anew."""
    written = write(text)
    read = _read(written)
    mapped = _mapped(read, write)
    return written if mapped == read else json.dumps(mapped, ensure_ascii=False)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


_CACHED_CHARACTERS = 2000
"""Longer texts are not kept: they rarely come twice."""
CACHED_TEXTS = 1024
"""Texts whose ids are remembered, at four bytes each: at most 16 MB."""
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
        self._cached_encode = lru_cache(CACHED_TEXTS)(lambda text: array("i", self._encode(text)))
        self._ids: dict[str, int | None] = {}
        """The ids by token, of the few tokens that are looked up by name with every reply."""
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
        if (marked := current_mark()) is not None:
            return self.special.encode(text, marked)
        if len(text) > _CACHED_CHARACTERS:
            return list(self._encode(text))
        return self._cached_encode(text).tolist()

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
        if (marked := current_mark()) is not None:
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
