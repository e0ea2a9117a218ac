"""The message that sampled ids spell, whatever a model wrote: nothing that it said is lost."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

from art.rendering.chat import Parsed, Tool, ToolCall
from art.rendering.held_calls import CallMarkers, read_held
from art.rendering.raw_json import is_object, raw_member
from art.rendering.reply import Text


def read_completion(
    renderer: Any,
    tokenizer: Text,
    ids: list[int],
    prompt_ids: list[int],
    tools: list[Tool] | None,
    *,
    stops: Container[int],
    partial: bool,
    held: CallMarkers | None = None,
) -> Parsed:
    """See `ChatRenderer.parse`. `renderer` is of the library `renderers`; `stops` are ids that end a turn;
    `held`: the reply was held to calls between these markers.
    """
    if held is not None and tools:
        read = read_held(renderer, tokenizer, _until(stops, ids), prompt_ids, tools, held, partial=partial)
        if read is not None:
            return read
    try:
        parsed = renderer.parse_response(ids, tools=tools, prompt_ids=prompt_ids)
    except (ValueError, RecursionError):
        # A model may write JSON that no parser takes: a thousand brackets, a number of 5,000 digits.
        return Parsed(content="" if partial else tokenizer.decode(_until(stops, ids)).strip())
    reasoning = (parsed.reasoning_content or "").strip() or None
    content: str = parsed.content
    if not parsed.tool_calls or partial:
        return Parsed(content=content, reasoning=reasoning)
    body = _until(stops, ids)
    if not tools:
        span = parsed.tool_calls[0].token_span
        rest = tokenizer.decode(body[span[0] :]) if span else "\n".join(c.raw for c in parsed.tool_calls)
        return Parsed(content=_join(content, rest), reasoning=reasoning)
    calls: list[ToolCall] = []
    for attempt in parsed.tool_calls:
        call = _read_call(attempt)
        if call is not None:
            calls.append(call)
            continue
        span = attempt.token_span
        content = _join(content, tokenizer.decode(body[span[0] : span[1]]) if span else attempt.raw)
    return Parsed(content=content, reasoning=reasoning, tool_calls=tuple(calls))


def _until(stops: Container[int], ids: list[int]) -> list[int]:
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
    if isinstance(arguments, str) and is_object(arguments):
        return ToolCall(name=attempt.name, arguments=arguments)
    if isinstance(arguments, dict):
        return ToolCall(name=attempt.name, arguments=json.dumps(arguments, ensure_ascii=False))
    return None
