"""A model's reply from the bytes of a response that somebody else reads, as one JSON or as events.

chat completions    chunks are put together; a stream that was closed early is a reply without an end
completions         chunks are put together, up to [DONE]
responses           the last event has all of it
messages            events are put together, up to `message_stop`
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ValidationError

from art.exchanges import AnsweredBy, Dialect, exchange_of, read_reply_fields
from art.recording.listeners import Listener
from art.streamed_completion import update_chat_completion
from art.wire.rollouts import CALL_NOTE, ObservedCompletion

log = logging.getLogger(__name__)


def read_reply(dialect: Dialect, body: bytes, *, streamed: bool) -> Any:
    """The reply in `body` as the class of its dialect; None where it is something else, or not complete.

    Chat completions are given as far as they were read.
    """
    if dialect == "chat_completions":
        return read_completion(body, streamed=streamed)
    fields = _ASSEMBLED[dialect](body) if streamed else _loaded(body)
    if fields is None or not isinstance(fields.get(_CONTENT[dialect]), list):
        return None
    return read_reply_fields(dialect, fields)


_CONTENT: Mapping[Dialect, str] = {"completions": "choices", "responses": "output", "messages": "content"}
"""The field without which a JSON is no reply."""


def hear_reply(
    listener: Listener,
    dialect: Dialect,
    request: Mapping[str, Any],
    reply: Any,
    started_at: float,
    answered_by: AnsweredBy | None = None,
) -> None:
    """Lets the listener hear a call that is answered now. Choices of a chat have their note already."""
    exchange = exchange_of(dialect, request, reply, started_at, max(started_at, time.time()))
    exchange._answered_by = answered_by
    listener.on_exchange(exchange)


def note_call(completion: ChatCompletion, started_at: float) -> None:
    """Notes in each choice when its completion was asked for and ended (now), and what was counted."""
    call: ObservedCompletion = {"started_at": started_at, "ended_at": max(started_at, time.time())}
    # Other servers leave fields out, or write something else there.
    if isinstance(model := getattr(completion, "model", None), str):
        call["model"] = model
    usage, choices = getattr(completion, "usage", None), getattr(completion, "choices", None) or []
    if isinstance(asked := getattr(usage, "prompt_tokens", None), int):
        call["prompt_tokens"] = asked
    if isinstance(given := getattr(usage, "completion_tokens", None), int) and len(choices) == 1:
        call["completion_tokens"] = given
    note_choices(choices, call)


def note_choices(choices: Sequence[object], call: Mapping[str, Any]) -> None:
    """Gives each choice of a reply its note. The first one has the tokens of the prompt, which they share."""
    for place, choice in enumerate(choices):
        if isinstance(choice, BaseModel):
            noted = {name: value for name, value in call.items() if place == 0 or name != "prompt_tokens"}
            setattr(choice, CALL_NOTE, noted)


def read_completion(body: bytes, *, streamed: bool) -> ChatCompletion | None:
    """The completion in `body`, or None where it is something else (an error, another API, cut off JSON).

    A choice whose stream was closed early has no `finish_reason`; one whose server told none to the end, but
    sent its [DONE], has "stop".
    """
    if not streamed:
        whole = _loaded(body)
        return _completion(whole) if whole is not None and _choices(whole) else None
    reply, complete = ChatCompletion.construct(object="chat.completion", choices=[]), False
    for chunk in _events(body):
        if chunk is None:
            complete = True
        else:
            update_chat_completion(reply, {**chunk, "choices": _choices(chunk)})
    return _completion(_reply_fields(reply, complete=complete)) if reply.choices else None


def _reply_fields(reply: ChatCompletion, *, complete: bool) -> dict[str, Any]:
    """The fields of a streamed reply, without gaps in the numbers of its calls."""
    fields = reply.model_dump(warnings=False)
    for choice in fields["choices"]:
        if complete:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        message = choice["message"]
        if calls := message.get("tool_calls"):
            kept = [call for call in calls if call["id"] or any(call["function"].values())]
            message.update(tool_calls=kept or None, content=message["content"] or None)
    return fields


def _completion(fields: dict[str, Any]) -> ChatCompletion:
    try:
        return ChatCompletion.model_validate(fields)
    except ValidationError:  # other servers leave fields out
        return ChatCompletion.construct(**fields)


def _events(body: bytes) -> Iterator[dict[str, Any] | None]:
    """The chunks, and None for the [DONE] of a server that told of no error."""
    failed = False
    for line in body.splitlines():
        name, _, data = line.partition(b":")
        if name != b"data":
            continue
        if data.strip() == b"[DONE]":
            if not failed:
                yield None
            return
        chunk = _loaded(data)
        if chunk is not None:
            failed = failed or bool(chunk.get("error"))
            yield chunk


def _loaded(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        log.debug("not a completion: %s", error)
        return None
    return value if isinstance(value, dict) else None


def _choices(fields: dict[str, Any]) -> list[dict[str, Any]]:
    choices = fields.get("choices")
    return [item for item in choices if isinstance(item, dict)] if isinstance(choices, list) else []


def _assembled_completion(body: bytes) -> dict[str, Any] | None:
    """Chunks of `/v1/completions`: texts and lists grow, of other fields the last value counts."""
    reply: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    complete = False
    for chunk in _events(body):
        complete = complete or chunk is None
        fields = chunk or {}
        reply |= {name: value for name, value in fields.items() if value is not None and name != "choices"}
        for part in _choices(fields):
            _grow(choices.setdefault(part.get("index") or 0, {}), part)
    return {**reply, "choices": [choices[n] for n in sorted(choices)]} if complete and choices else None


def _grow(target: dict[str, Any], piece: Mapping[str, Any], texts: Sequence[str] = ("text",)) -> None:
    for name, value in piece.items():
        before = target.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            _grow(before, value, texts)
        elif isinstance(value, list) and isinstance(before, list):
            before.extend(value)
        elif name in texts and isinstance(before, str) and isinstance(value, str):
            target[name] = before + value
        elif value is not None:
            target[name] = value


def _finished_response(body: bytes) -> dict[str, Any] | None:
    for event in _events(body):
        if event is not None and event.get("type") in ("response.completed", "response.incomplete"):
            response = event.get("response")
            return response if isinstance(response, dict) else None
    return None


_PIECE_OF = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""A piece of a block by its type -> the field of the block that grows."""


def _assembled_message(body: bytes) -> dict[str, Any] | None:
    """Events of `/v1/messages`: blocks grow by their index."""
    reply: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for event in _events(body):
        match event:
            case {"type": "message_start", "message": dict(message)}:
                reply = message
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                blocks[index] = block
            case {"type": "content_block_delta", "index": int(index), "delta": dict(piece)}:
                name = _PIECE_OF.get(piece.pop("type", ""))
                grown: dict[str, Any] = {name: piece.get(name)} if name else piece
                _grow(blocks.setdefault(index, {}), grown, tuple(_PIECE_OF.values()))
            case {"type": "message_delta", "delta": dict(delta)}:
                used = {**(reply.get("usage") or {}), **((event or {}).get("usage") or {})}
                reply |= {**delta, "usage": used}
            case {"type": "message_stop"}:
                return {**reply, "content": [_read_input(blocks[n]) for n in sorted(blocks)]}
    return None


def _read_input(block: dict[str, Any]) -> dict[str, Any]:
    """A block of a call with the input that its pieces spell."""
    spelled = block.pop("partial_json", None)
    if spelled:
        block["input"] = _loaded(spelled.encode()) or {}
    return block


_ASSEMBLED: Mapping[Dialect, Callable[[bytes], dict[str, Any] | None]] = {
    "completions": _assembled_completion,
    "responses": _finished_response,
    "messages": _assembled_message,
}
