"""An assistant's reply: a given message as the ids that the model would sample, and sampled ids as a message.

No chat format offers the first: a rendering mixes what is sampled with what the format adds. So a short probe
is written twice, once up to where the assistant begins to write and once with the message in it. What the
second adds is the reply, up to and with the id that ends a turn:

    probe and opening    <|im_start|>user a <|im_end|> <|im_start|>assistant
    probe and message    <|im_start|>user a <|im_end|> <|im_start|>assistant hello <|im_end|> (newline)
    reply                                                                    hello <|im_end|>

Three things are in the way, and each has a step here: an opening whose last id merges with what follows, an
opening that has begun a thought which the written message does not begin, and formats without an end of turn
(the model samples the marker of whoever speaks next).

In the other direction nothing that the model said is lost. Whether free text becomes a call is known when its
last brace is there. A reply that a grammar holds to calls is one from the first word on, so its arguments can
be streamed piece by piece:

    sampled so far      <tool_call> {"name": "search", "arguments": {"keyword": "atl
    the call            search, {"keyword": "atl

A whole reply is read by the same rules as one that goes on. So a call that was cut off is a call with the
arguments that are there, and what was streamed of it stays true. Arguments are the text that was written,
never JSON that was read and written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from json.decoder import JSONDecoder
from typing import Any, Protocol

from art.rendering.chat_renderer import Message, Parsed, Tool, ToolCall

JSON_DECODER = JSONDecoder()
_SPACE = " \t\n\r"


def raw_member(text: str, key: str) -> str | None:
    """The text of `key`'s value in the object `text`; None when it is no object, or has no such key.

    Parsing and writing again would turn `1e3` into `1000.0`: programs should see what the model wrote.

    >>> raw_member('{"name": "f", "arguments": {"x": 1e3, "ok": false}}', "arguments")
    '{"x": 1e3, "ok": false}'
    """
    position = skip_space(text, 0)
    if text[position : position + 1] != "{":
        return None
    found: str | None = None
    position = skip_space(text, position + 1)
    try:
        while text[position : position + 1] == '"':
            name, position = JSON_DECODER.raw_decode(text, position)
            position = skip_space(text, position)
            if text[position : position + 1] != ":":
                return None
            start = skip_space(text, position + 1)
            _, position = JSON_DECODER.raw_decode(text, start)
            if name == key:
                found = text[start:position]
            position = skip_space(text, position)
            if text[position : position + 1] == ",":
                position = skip_space(text, position + 1)
    except json.JSONDecodeError:
        return None
    return found if text[position : position + 1] == "}" else None


def is_object(text: str) -> bool:
    """Returns whether the text is one valid JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def skip_space(text: str, position: int) -> int:
    """Returns where the next token of JSON begins."""
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


_USER: dict[str, Any] = {"role": "user", "content": "a"}
THINK, END_THINK = "<think>", "</think>"
TAIL = 8
"""The number of last ids of a prompt that show whether it has begun or ended a thought."""


class Format(Protocol):
    """The interface of a chat format. `render_ids` as in the library `renderers`."""

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
    rendered = chat.render_ids([_USER, message], tools=listed)
    thinking = is_thinking(tokenizer, prompt_ids)
    if rendered[: len(opening)] == opening and thinking == is_thinking(tokenizer, opening):
        ids = rendered[len(opening) :]
    else:
        ids = _behind_empty_thought(chat, tokenizer, opening, message, listed) or tokenizer.encode(
            _reply_text(tokenizer, opening, rendered, message, thinking)
        )
    end = next((n for n, token in enumerate(ids) if token in stops), None)
    if end is None:
        return [*_without_tail(tokenizer, ids), _end_of_turn(chat, rendered, message, listed, stops)]
    if tokenizer.decode(ids[end + 1 :]).strip():
        raise UnsayableError(
            f"its text holds {tokenizer.decode([ids[end]])!r}, which ends a turn of this model; take it out"
        )
    return list(ids[: end + 1])


def _behind_empty_thought(
    chat: Format, tokenizer: Text, opening: list[int], message: Message, tools: list[Any] | None
) -> list[int] | None:
    """The reply that ends at once the thought that the opening has begun in a channel of its own (gpt-oss);
    None elsewhere.
    """
    if message.get("reasoning_content") or "<|channel|>" not in tokenizer.decode(opening[-TAIL:]):
        return None
    rendered = chat.render_ids([_USER, {**message, "reasoning_content": "a"}], tools=tools)
    begun = [*opening, *tokenizer.encode("a")]
    return rendered[len(begun) :] if rendered[: len(begun)] == begun else None


def first_prompt(
    chat: Format, message: Message, reply: Sequence[int], tools: Sequence[Tool] | None
) -> list[int]:
    """The prompt of a conversation that the assistant opens: all that is written before its reply.

    Raises UnsayableError when the format writes nothing there.
    """
    listed, said = list(tools) if tools else None, list(reply[:-1])
    asked = chat.render_ids([_USER], tools=listed)
    opening = chat.render_ids([_USER], tools=listed, add_generation_prompt=True)
    begun = opening[len(asked) :] if opening[: len(asked)] == asked else []
    for messages in ([message], [message, _USER]):
        try:
            rendered = chat.render_ids(messages, tools=listed)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # some formats want to see a question
        if begun and said[:1] == asked[-1:]:
            # Turns and thoughts end alike: a reply without a thought would seem to begin a turn too early.
            turns = (n for n in range(1, len(rendered)) if rendered[n - 1] == asked[-1])
            start = next((n for n in turns if rendered[n : n + 2] == begun[:2]), None)
            if start is not None:
                return [*rendered[:start], *begun]
        for start in range(1, len(rendered) - len(said) + 1):
            if rendered[start : start + len(said)] == said:
                return rendered[:start]
    if not begun:
        raise UnsayableError("this chat format has no place for an assistant who speaks first")
    return begun


def _with_canonical_calls(message: Message) -> Message:
    """The message with the call ids that models make themselves, where a format (Kimi's) writes them."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    named = [{**call, "id": f"functions.{call['function']['name']}:{n}"} for n, call in enumerate(calls)]
    return {**message, "tool_calls": named}


def is_thinking(tokenizer: Text, prompt_ids: Sequence[int]) -> bool:
    """Returns whether the prompt has begun a thought that the reply has to end."""
    return tokenizer.decode(list(prompt_ids[-TAIL:])).rstrip().endswith(THINK)


def _reply_text(
    tokenizer: Text, opening: Sequence[int], turn_ids: Sequence[int], message: Message, thinking: bool
) -> str:
    """The text of the reply behind a prompt that has (or has not) begun a thought."""
    opened, text = tokenizer.decode(opening), tokenizer.decode(turn_ids)
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
    """Returns the text without the white space that a format puts between turns."""
    end = len(ids)
    while end and not tokenizer.decode([ids[end - 1]]).strip():
        end -= 1
    return list(ids[:end])


def _end_of_turn(
    chat: Format, turn_ids: Sequence[int], message: Message, tools: list[Any] | None, stops: Sequence[int]
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
    if after[: len(turn_ids)] == list(turn_ids):
        end = next((token for token in after[len(turn_ids) :] if token in stops), None)
        if end is not None:
            return end
    if not stops:
        raise UnsayableError("the model's chat format has no token that ends a turn")
    return stops[0]


_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"arguments"\s*:\s*(?=\{)')
_STRUCTURE = re.compile(r'[{}\[\]]|"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class CallMarkers:
    """The ids around a call that is written as `{"name": ..., "arguments": {...}}`."""

    opening: int
    closing: int


def read_constrained_calls(
    renderer: Any,
    tokenizer: Text,
    body: list[int],
    prompt_ids: Sequence[int],
    tools: list[Tool],
    markers: CallMarkers,
    *,
    partial: bool,
) -> Parsed | None:
    """The message of a reply that was held to calls; None where none has begun.

    `body`: its ids, without those that end the turn. `partial`: they go on; only what stays so is told.
    What stands behind a call and is none is left out: nothing but a call was possible there.
    """
    start = _first_call(tokenizer, body, prompt_ids, markers)
    if start is None:
        return None
    try:
        before = renderer.parse_response(body[:start], tools=tools, prompt_ids=list(prompt_ids))
    except (ValueError, RecursionError):
        return None
    if before.tool_calls:
        return None  # what looked like a thought was none
    content: str = before.content
    calls: list[ToolCall] = []
    for first, end in _blocks(body, start, markers):
        closed = end < len(body)
        raw = tokenizer.decode(body[first + 1 : end])
        call = begun_call(raw if closed else raw.rstrip("\ufffd"))
        if call is None and closed:
            call = _in_other_order(raw)
        if call is not None:
            calls.append(call)
        elif not calls and (closed or not partial):
            rest = tokenizer.decode(body[first : end + 1]).strip()
            content = f"{content}\n{rest}" if content and rest else content or rest
    reasoning = (before.reasoning_content or "").strip() or None
    return Parsed(content=content, reasoning=reasoning, tool_calls=tuple(calls))


def begun_call(raw: str) -> ToolCall | None:
    """The call whose text begins so, with its arguments as far as they are there; None before they begin.

    >>> begun_call('{"name": "read", "arguments": {"x": [1, ')
    ToolCall(name='read', arguments='{"x": [1, ')
    >>> begun_call('{"name": "read", "arguments": {"x": "}"}}')
    ToolCall(name='read', arguments='{"x": "}"}')
    >>> begun_call('{"name": "read", "argu')
    """
    head = _HEAD.match(raw)
    if head is None:
        return None
    return ToolCall(name=head[1], arguments=raw[head.end() : _end_of_object(raw, head.end())])


def _end_of_object(text: str, start: int) -> int:
    """Returns the index behind the brace that ends the object at `start`; the end of the text, if there is
    none yet.
    """
    depth = 0
    for part in _STRUCTURE.finditer(text, start):
        if part[0] in "{[":
            depth += 1
        elif part[0] in "}]":
            depth -= 1
            if depth == 0:
                return part.end()
    return len(text)


def _in_other_order(raw: str) -> ToolCall | None:
    """A whole call whose name does not come first."""
    try:
        name = json.loads(raw)["name"]
        arguments = raw_member(raw, "arguments")
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    if not isinstance(name, str) or not name or arguments is None or not is_object(arguments):
        return None
    return ToolCall(name=name, arguments=arguments)


def _first_call(
    tokenizer: Text, body: list[int], prompt_ids: Sequence[int], markers: CallMarkers
) -> int | None:
    """Returns the start of the calls: behind the thought, if there is one. None: not yet, or not for
    certain.
    """
    start = _index(body, markers.opening)
    if start is None:
        return None
    if THINK not in tokenizer.decode(body[:start]) and not is_thinking(tokenizer, prompt_ids):
        return start
    closing = tokenizer.encode(END_THINK)
    over = _index(body, closing[0]) if len(closing) == 1 else None
    return None if over is None else _index(body, markers.opening, over)


def _blocks(body: list[int], start: int, markers: CallMarkers) -> list[tuple[int, int]]:
    """Each call's opening marker and its closing one; the end of the ids, where there is none."""
    blocks, at = [], _index(body, markers.opening, start)
    while at is not None:
        end = _index(body, markers.closing, at)
        blocks.append((at, len(body) if end is None else end))
        at = None if end is None else _index(body, markers.opening, end)
    return blocks


def _index(ids: list[int], wanted: int, start: int = 0) -> int | None:
    try:
        return ids.index(wanted, start)
    except ValueError:
        return None


def read_completion(
    renderer: Any,
    tokenizer: Text,
    ids: list[int],
    prompt_ids: list[int],
    tools: list[Tool] | None,
    *,
    stops: Container[int],
    partial: bool,
    call_markers: CallMarkers | None = None,
) -> Parsed:
    """See `ChatRenderer.parse`. `renderer` is of the library `renderers`; `stops` are ids that end a turn;
    `call_markers`: the reply was held to calls between these.
    """
    if call_markers is not None and tools:
        read = read_constrained_calls(
            renderer,
            tokenizer,
            _ids_before_stop(stops, ids),
            prompt_ids,
            tools,
            call_markers,
            partial=partial,
        )
        if read is not None:
            return read
    try:
        parsed = renderer.parse_response(ids, tools=tools, prompt_ids=prompt_ids)
    except (ValueError, RecursionError):
        # A model may write JSON that no parser takes: a thousand brackets, a number of 5,000 digits.
        return Parsed(content="" if partial else tokenizer.decode(_ids_before_stop(stops, ids)).strip())
    reasoning = (parsed.reasoning_content or "").strip() or None
    content: str = parsed.content
    if not parsed.tool_calls or partial:
        return Parsed(content=content, reasoning=reasoning)
    body = _ids_before_stop(stops, ids)
    if not tools:
        span = parsed.tool_calls[0].token_span
        rest = tokenizer.decode(body[span[0] :]) if span else "\n".join(c.raw for c in parsed.tool_calls)
        return Parsed(content=_join(content, rest), reasoning=reasoning)
    calls: list[ToolCall] = []
    malformed = 0
    for attempt in parsed.tool_calls:
        call = _read_call(attempt)
        if call is not None:
            calls.append(call)
            continue
        malformed += 1
        span = attempt.token_span
        content = _join(content, tokenizer.decode(body[span[0] : span[1]]) if span else attempt.raw)
    return Parsed(content=content, reasoning=reasoning, tool_calls=tuple(calls), malformed_calls=malformed)


def _ids_before_stop(stops: Container[int], ids: list[int]) -> list[int]:
    end = next((n for n, token_id in enumerate(ids) if token_id in stops), len(ids))
    return ids[:end]


def _join(content: str, rest: str) -> str:
    rest = rest.strip()
    return f"{content}\n{rest}" if content and rest else content or rest


def _read_call(attempt: Any) -> ToolCall | None:
    """The call with its arguments as written, or None when the attempt is malformed."""
    if attempt.status != "ok" or not isinstance(attempt.name, str):
        return None
    written = raw_member(attempt.raw, "arguments")
    if written is not None and is_object(written):
        return ToolCall(name=attempt.name, arguments=written)
    arguments = attempt.arguments
    for alone in (raw_member(attempt.raw, "parameters"), attempt.raw):
        if alone and is_object(alone) and json.loads(alone) == arguments:
            return ToolCall(name=attempt.name, arguments=alone)
    if isinstance(arguments, str) and is_object(arguments):
        return ToolCall(name=attempt.name, arguments=arguments)
    if isinstance(arguments, dict):
        return ToolCall(name=attempt.name, arguments=json.dumps(arguments, ensure_ascii=False))
    return None
