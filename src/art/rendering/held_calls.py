"""Calls of a reply that may be nothing else, read while they are written.

Whether free text becomes a call is known when its last brace is there. A reply that a grammar holds to calls
is one from the first word on, so its arguments can be told piece by piece:

    sampled so far      <tool_call> {"name": "search", "arguments": {"keyword": "atl
    the call            search, {"keyword": "atl

A whole reply is read by the same rules as one that goes on. So a call that was cut off is a call with the
arguments that are there, and what was told of it stays true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from art.rendering.chat import Parsed, Tool, ToolCall
from art.rendering.raw_json import is_object, raw_member
from art.rendering.reply import END_THINK, THINK, Text, thinks

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"arguments"\s*:\s*(?=\{)')
_STRUCTURE = re.compile(r'[{}\[\]]|"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class CallMarkers:
    """The ids around a call that is written as `{"name": ..., "arguments": {...}}`."""

    opening: int
    closing: int


def read_held(
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
    """Behind the brace that ends the object at `start`; the end of the text, where there is none yet."""
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
    """Where the calls begin: behind the thought, if there is one. None: not yet, or not for certain."""
    start = _index(body, markers.opening)
    if start is None:
        return None
    if THINK not in tokenizer.decode(body[:start]) and not thinks(tokenizer, prompt_ids):
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
