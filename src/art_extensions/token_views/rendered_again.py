"""`tokenize(tokenizer=...)`: a conversation rendered and tokenized again, and what the ledger says of it.

The tokenizer's chat template writes the conversation. The tokens of each assistant message are found in it,
and compared with those that were sampled, from the front and from the back, up to the first difference:

    sampled        [        4,   7,   3 ]        and the prompt before it  [ 1, 5, 2, 9 ]
    written again  [ 1, 5, 2, 9, 4,   8,   3, 6 ]
    flags            E  E  E  E  E|S  -    E|S -     with ASSISTANT and OUTPUT for 4, 8 and 3
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from art.errors import ConfigurationError
from art.history import History
from art.process.imports import import_lock
from art.types import get_messages, is_choice
from art_extensions.token_views.base_tokenizers import get_tokenizer
from art_extensions.token_views.sampled_turns import SampledTurn
from art_extensions.token_views.tokenized import TokenFlag, TokenizedHistory

_PROBE = "zqprobe"
_USER = {"role": "user", "content": "a"}
_REFUSALS = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    RecursionError,
    ImportError,
    NotImplementedError,
)
"""A template is a program of its own, and fails in many ways."""


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """The way in which conversations are rendered and tokenized again."""

    tokenizer: Any
    """A fast tokenizer of transformers."""
    template: str | None = None
    """Takes the place of the tokenizer's own."""
    arguments: Mapping[str, Any]
    """Further variables of the template."""
    keep_equal_texts: bool = False
    """Whether sampled ids stay where their text is the one that was written again."""

    def write(self, messages: Sequence[Any], tools: Any = None, *, generate: bool = False) -> str:
        """Returns the text of a conversation. Raises: ConfigurationError where the template refuses it."""
        with import_lock:
            from jinja2.exceptions import TemplateError

        chosen = {} if self.template is None else {"chat_template": self.template}
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(messages),
                    tools=tools or None,
                    tokenize=False,
                    add_generation_prompt=generate,
                    **chosen,
                    **self.arguments,
                )
            )
        except (TemplateError, *_REFUSALS) as error:
            raise ConfigurationError(
                f"tokenize(): the chat template refuses the messages: {error}"
            ) from error

    def split(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids of a text, and the characters of each: first, and behind the last."""
        try:
            found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            return list(found["input_ids"]), list(found["offset_mapping"])
        except _REFUSALS as error:
            raise ConfigurationError(
                f"tokenize(tokenizer={type(self.tokenizer).__name__}): a fast tokenizer of transformers is "
                f"needed, such as art.get_tokenizer(base_model): {error}"
            ) from error


def rendering_of(
    *, model: Any, base_model: str | None, tokenizer: Any, template: str | None, arguments: Any, equal: bool
) -> Rendering | None:
    """Returns what the options of `tokenize` ask for; None: nothing. Raises: ConfigurationError."""
    if base_model is None and tokenizer is None and template is None and arguments is None:
        return None
    if base_model is not None and tokenizer is not None:
        raise ConfigurationError("tokenize(): give one of tokenizer= and base_model=")
    if tokenizer is None:
        base_model = base_model or getattr(model, "base_model", None)
        if base_model is None:
            raise ConfigurationError(
                "tokenize(chat_template=..., chat_template_kwargs=...) needs tokenizer=, base_model=, or a "
                "registered art.TrainableModel as model="
            )
        tokenizer = base_model
    if isinstance(tokenizer, str):
        tokenizer = get_tokenizer(tokenizer)
    return Rendering(
        tokenizer=tokenizer, template=template, arguments=dict(arguments or {}), keep_equal_texts=equal
    )


def render_again(
    chat: History, sampled: Mapping[int, SampledTurn], rendering: Rendering, *, model: str | None
) -> TokenizedHistory:
    """Returns a conversation as its rendering. sampled: by places in it, the turns that the ledger has.

    Raises: ConfigurationError for messages that the template refuses, or writes so that they cannot be found.
    """
    items = chat.messages_and_choices
    messages = [_with_read_arguments(message) for message in get_messages(items)]
    text = rendering.write(messages, chat.tools)
    ids, offsets = rendering.split(text)
    replies = _ids_of_replies(rendering, _find_replies(rendering, messages, chat.tools, text), ids, offsets)
    if rendering.keep_equal_texts:
        ids, replies = _with_sampled_ids(rendering, ids, replies, sampled)
    found = TokenizedHistory(
        history=chat,
        model=model,
        tokens=ids,
        logprobs=[math.nan] * len(ids),
        flags=[TokenFlag(0)] * len(ids),
    )
    special = set(rendering.tokenizer.all_special_ids)
    known: list[int] = []
    behind = 0  # of the turn before
    for place, (begin, end) in replies.items():
        of_turn = TokenFlag.ASSISTANT | (TokenFlag.OUTPUT if is_choice(items[place]) else TokenFlag(0))
        found.flags[begin:end] = [of_turn] * (end - begin)
        if begin < end and ids[end - 1] in special:
            found.flags[end - 1] |= TokenFlag.STOP
        if (turn := sampled.get(place)) is not None:
            _mark_prompt(found, turn.prompt_ids, known, behind, begin)
            _mark_reply(found, turn, begin, end)
            known, behind = [*turn.prompt_ids, *turn.completion_ids], end
    return found


def _ids_of_replies(
    rendering: Rendering,
    replies: Mapping[int, tuple[int, int]],
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
) -> dict[int, tuple[int, int]]:
    """Returns the ids of each reply by its place, first and behind the last: with the one that ends its turn.

    replies: their characters. offsets: the characters of each id.
    """
    special = set(rendering.tokenizer.all_special_ids)
    found = {}
    for place, (first, last) in replies.items():
        begin = next((n for n, (_, end) in enumerate(offsets) if end > first), len(ids))
        end = next((n for n, (start, _) in enumerate(offsets) if start >= last), len(ids))
        found[place] = begin, end + (end < len(ids) and ids[end] in special)
    return found


def _with_sampled_ids(
    rendering: Rendering,
    ids: list[int],
    replies: Mapping[int, tuple[int, int]],
    sampled: Mapping[int, SampledTurn],
) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """Returns the ids, and the places of replies in them, with sampled ids for those of the same text."""
    kept: list[int] = []
    places = {}
    behind = 0
    for place, (begin, end) in replies.items():
        written = ids[begin:end]
        if (turn := sampled.get(place)) is not None:
            said = turn.completion_ids
            if rendering.tokenizer.decode(said) == rendering.tokenizer.decode(written):
                written = said
        kept += ids[behind:begin]
        places[place] = len(kept), len(kept) + len(written)
        kept += written
        behind = end
    return [*kept, *ids[behind:]], places


def _mark_prompt(
    found: TokenizedHistory, prompt: Sequence[int], known: Sequence[int], first: int, last: int
) -> None:
    """Marks what the prompt of a turn has too, behind `known`, the ids of the turns before it."""
    extends = list(prompt[: len(known)]) == list(known)
    added = list(prompt[len(known) :] if extends else prompt)
    written = found.tokens[first:last]
    for at in _equal_places(written, added, from_front=extends):
        found.flags[first + at] |= TokenFlag.EXACT


def _mark_reply(found: TokenizedHistory, turn: SampledTurn, begin: int, end: int) -> None:
    sampled = TokenFlag.EXACT | TokenFlag.SAMPLED | TokenFlag.PROCESSED_LOGPROBS
    if turn.unprocessed:
        sampled |= TokenFlag.RAW_LOGPROBS
    written = found.tokens[begin:end]
    longer = len(turn.completion_ids) - len(written)
    front = _shared(written, turn.completion_ids)
    for at in _equal_places(written, turn.completion_ids):
        found.flags[begin + at] |= sampled
        found.logprobs[begin + at] = turn.logprobs[at if at < front else at + longer]


def _shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns how many items two sequences begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _equal_places(written: list[int], other: list[int], *, from_front: bool = True) -> list[int]:
    """Places of `written` that `other` has too: from the front and from the back, to the first difference.

    >>> _equal_places([1, 2, 9, 4], [1, 2, 3, 3, 4])
    [0, 1, 3]
    """
    front = _shared(written, other) if from_front else 0
    back = _shared(written[front:][::-1], other[front:][::-1])
    return [*range(front), *range(len(written) - back, len(written))]


def _find_replies(
    rendering: Rendering, messages: Sequence[Any], tools: Any, text: str
) -> dict[int, tuple[int, int]]:
    """Returns the characters of each assistant message in the text, by its place: first, and behind the last.

    A message is where the text changes when a probe takes its place, and begins behind the opening of a turn.
    """
    opening = _opening(rendering)
    found: dict[int, tuple[int, int]] = {}
    behind = 0
    for place, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        probed = [*messages]
        probed[place] = {"role": "assistant", "content": _PROBE}
        before, probe, after = rendering.write(probed, tools).partition(_PROBE)
        last = len(text) - len(after)
        if not probe or not text.endswith(after):
            raise ConfigurationError(
                f"tokenize(): the chat template writes the rest of the conversation otherwise when message "
                f"{place} is another one, so the tokens of this message cannot be found"
            )
        common = min(_shared(text, before), last)
        opened = text.rfind(opening, behind, common)
        found[place] = common if opened < 0 else opened + len(opening), last
        behind = last
    return found


def _opening(rendering: Rendering) -> str:
    """Returns what the template writes before any reply, and before what it writes of one."""
    asked, opened = rendering.write([_USER]), rendering.write([_USER], generate=True)
    said = rendering.write([_USER, {"role": "assistant", "content": _PROBE}])
    begun = min(_shared(asked, opened), _shared(asked, said))
    before = said[begun:].partition(_PROBE)[0]
    return before[: _shared(opened[begun:], before)]


def _with_read_arguments(message: Any) -> Any:
    """A message whose calls have their arguments as objects, which is what templates read."""
    if not message.get("tool_calls"):
        return message
    calls = [dict(call) for call in message["tool_calls"]]
    for call in calls:
        function = dict(call.get("function") or {})
        try:
            read = json.loads(function.get("arguments") or "{}")
        except (TypeError, ValueError, RecursionError):
            continue
        call["function"] = {**function, "arguments": read} if isinstance(read, dict) else function
    return {**message, "tool_calls": calls}
