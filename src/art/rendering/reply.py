"""A given assistant message as the ids that the model would have to sample to say it.

No chat format offers this: a rendering mixes what is sampled with what the format adds. So a short probe is
written twice, once up to where the assistant begins to write and once with the message in it. What the
second adds is the reply, up to and with the id that ends a turn:

    probe and opening    <|im_start|>user a <|im_end|> <|im_start|>assistant
    probe and message    <|im_start|>user a <|im_end|> <|im_start|>assistant hello <|im_end|> (newline)
    reply                                                                    hello <|im_end|>

Three things are in the way, and each has a step here: an opening whose last id merges with what follows, an
opening that has begun a thought which the written message does not begin, and formats without an end of turn
(the model samples the marker of whoever speaks next).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from art.rendering.chat import Message, Tool

_USER: dict[str, Any] = {"role": "user", "content": "a"}
THINK, END_THINK = "<think>", "</think>"
TAIL = 8
"""So many last ids of a prompt show whether it has begun a thought."""


class Format(Protocol):
    """What is asked of a chat format. `render_ids` as in the library `renderers`."""

    def render_ids(
        self, messages: list[Any], *, tools: list[Any] | None = None, add_generation_prompt: bool = False
    ) -> list[int]: ...


class Text(Protocol):
    """Ids to text and back, special tokens included."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class UnsayableError(ValueError):
    """The format cannot express the message as a reply."""


def reply_ids(
    chat: Format,
    tokenizer: Text,
    prompt_ids: Sequence[int],
    message: Message,
    tools: Sequence[Tool] | None,
    stops: Sequence[int],
) -> list[int]:
    """Ids of an assistant's message behind a prompt, with the one of `stops` that ends the turn.

    Where the opening itself has ended all thought (thinking was turned off), reasoning is left out. Raises
    UnsayableError when the format does not write the message behind its own opening, has no end, or would end
    in the middle of it.
    """
    listed = list(tools) if tools else None
    message = _with_canonical_calls(message)
    opening = chat.render_ids([_USER], tools=listed, add_generation_prompt=True)
    if tokenizer.decode(opening[-TAIL:]).rstrip().endswith(END_THINK):
        message = {name: value for name, value in message.items() if name != "reasoning_content"}
    whole = chat.render_ids([_USER, message], tools=listed)
    thinking = thinks(tokenizer, prompt_ids)
    if whole[: len(opening)] == opening and thinking == thinks(tokenizer, opening):
        ids = whole[len(opening) :]
    else:
        ids = tokenizer.encode(_written(tokenizer, opening, whole, message, thinking))
    end = next((n for n, token in enumerate(ids) if token in stops), None)
    if end is None:
        return [*_without_tail(tokenizer, ids), _end_of_turn(chat, whole, message, listed, stops)]
    if tokenizer.decode(ids[end + 1 :]).strip():
        raise UnsayableError(
            f"its text holds {tokenizer.decode([ids[end]])!r}, which ends a turn of this model; take it out"
        )
    return list(ids[: end + 1])


def first_prompt(
    chat: Format, message: Message, reply: Sequence[int], tools: Sequence[Tool] | None
) -> list[int]:
    """The prompt of a conversation that the assistant opens: all that is written before its reply.

    Raises UnsayableError when the format writes nothing there.
    """
    listed, said = list(tools) if tools else None, list(reply[:-1])
    for messages in ([message], [message, _USER]):
        try:
            whole = chat.render_ids(messages, tools=listed)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # some formats want to see a question
        for start in range(1, len(whole) - len(said) + 1):
            if whole[start : start + len(said)] == said:
                return whole[:start]
    asked = chat.render_ids([_USER], tools=listed)
    opening = chat.render_ids([_USER], tools=listed, add_generation_prompt=True)
    if opening[: len(asked)] != asked or len(opening) == len(asked):
        raise UnsayableError("this chat format has no place for an assistant who speaks first")
    return opening[len(asked) :]


def _with_canonical_calls(message: Message) -> Message:
    """The message with the call ids that models make themselves, where a format (Kimi's) writes them."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    named = [{**call, "id": f"functions.{call['function']['name']}:{n}"} for n, call in enumerate(calls)]
    return {**message, "tool_calls": named}


def thinks(tokenizer: Text, prompt_ids: Sequence[int]) -> bool:
    """Whether the prompt has begun a thought that the reply has to end."""
    return tokenizer.decode(list(prompt_ids[-TAIL:])).rstrip().endswith(THINK)


def _written(
    tokenizer: Text, opening: Sequence[int], whole: Sequence[int], message: Message, thinking: bool
) -> str:
    """The text of the reply behind a prompt that has (or has not) begun a thought."""
    opened, text = tokenizer.decode(opening), tokenizer.decode(whole)
    if thinking and text.startswith(opened) and opened.rstrip().endswith(THINK):
        return text[len(opened) :]
    bare = opened.rstrip().removesuffix(THINK) if opened.rstrip().endswith(THINK) else opened
    if not text.startswith(bare):
        raise UnsayableError("the chat format writes it otherwise than behind its own opening of a turn")
    body = text[len(bare) :]
    if not thinking:
        return body
    if body.startswith(THINK):
        return body.removeprefix(THINK).removeprefix("\n")
    if body.startswith(END_THINK):
        return body
    # The format drops thoughts of turns that are over; this one is still to be said.
    return f"{message.get('reasoning_content') or ''}\n{END_THINK}\n\n{body}"


def _without_tail(tokenizer: Text, ids: Sequence[int]) -> list[int]:
    """Without the white space that a format puts between turns."""
    kept = len(ids)
    while kept and not tokenizer.decode([ids[kept - 1]]).strip():
        kept -= 1
    return list(ids[:kept])


def _end_of_turn(
    chat: Format, whole: Sequence[int], message: Message, tools: list[Any] | None, stops: Sequence[int]
) -> int:
    """The stop that follows: the marker of the next speaker, where turns have no end of their own."""
    following: list[Any] = [_USER]
    if calls := message.get("tool_calls"):
        following = [
            {"role": "tool", "tool_call_id": call.get("id", ""), "content": "a"}
            | {"name": call["function"]["name"]}
            for call in calls
        ]
    after = chat.render_ids([_USER, message, *following], tools=tools)
    if after[: len(whole)] == list(whole):
        end = next((token for token in after[len(whole) :] if token in stops), None)
        if end is not None:
            return end
    if not stops:
        raise UnsayableError("the model's chat format has no token that ends a turn")
    return stops[0]
