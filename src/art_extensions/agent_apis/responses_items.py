"""Items of the Responses API as chat messages, and the store of responses that can be continued by their id.

What the assistant said in one turn is one message (`responses_tools` has the other calls and results):

    [reasoning, message, function_call, function_call]    {"role": "assistant", "content", "tool_calls": [2]}
    [function_call_output, function_call_output]          {"role": "tool", ...}, {"role": "tool", ...}

The ids of our items name the sample that they are of, so a turn is known again when it comes back. The store
is in memory, each tenant's own, bounded in bytes. Each response holds what was new with it; a conversation is
put together along `previous_response_id`.
"""

from __future__ import annotations

import contextlib
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from art.errors import NotFoundError
from art.server.chat.messages import SAMPLE_PREFIX
from art.server.http import decode_json
from art.server.tenancy import Tenant
from art.wire.quoting import quote_value
from art.wire.request_values import refuse
from art.wire.rollouts import SAMPLE_FIELD
from art_extensions.agent_apis.responses_tools import (
    ADDITIONAL_TOOLS,
    BY_CALL,
    BY_OUTPUT,
    FUNCTION,
    TOOL_SEARCH_OUTPUT,
    Item,
    RequestTools,
    shown_name,
)

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text")
_OUR_ID = re.compile(r"(?:resp|msg|rs|fc|call)_([0-9a-f]{24})(?:_\d+)?")
SUPPORTED = ("message", "reasoning", "item_reference", ADDITIONAL_TOOLS, *BY_CALL, *BY_OUTPUT)


def parse_sample_id(identifier: Any) -> str | None:
    """The sample that an id of a response, an item or a call names; None for a foreign id."""
    match = _OUR_ID.fullmatch(identifier) if isinstance(identifier, str) else None
    return SAMPLE_PREFIX + match[1] if match else None


def read_items(value: Any) -> list[Item]:
    """The items of `input`, each with its type. Raises: RequestError."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        refuse(f"input must be a text or a list of items, not {quote_value(value)}", "input")
    items = []
    for index, item in enumerate(value):
        at = f"input[{index}]"
        if not isinstance(item, dict):
            refuse(f"{at} must be an object, not {quote_value(item)}", at)
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind is None and isinstance(item.get("id"), str):
            kind = "item_reference"
        if kind not in SUPPORTED:
            supported = ", ".join(SUPPORTED)
            refuse(
                f"{at} is of type {quote_value(kind, 100)}; supported: {supported}",
                at,
                "unsupported_parameter",
            )
        items.append({**item, "type": kind})
    return items


def chat_messages(
    items: Sequence[Item], tools: RequestTools, *, find: Callable[[str], Item]
) -> list[dict[str, Any]]:
    """The messages that items are; `find` gives the item of a reference. `tools` takes up those that items
    bring.

    Raises: RequestError, NotFoundError.
    """
    turns = _Turns(tools)
    for index, item in enumerate(items):
        at = f"input[{index}]"
        if item["type"] == "item_reference":
            item = find(_text(item, "id", at))
        _READERS[item["type"]](turns, item, at)
    return turns.messages


class _Turns:
    """Messages so far. The last one may be an assistant's that goes on."""

    def __init__(self, tools: RequestTools) -> None:
        self.tools = tools
        self.messages: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None

    def add(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._open = None

    def assistant(self, item: Item, *, goes_on: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The message that an item of the assistant belongs to."""
        sample = (
            item.get(SAMPLE_FIELD) or parse_sample_id(item.get("id")) or parse_sample_id(item.get("call_id"))
        )
        turn = self._open
        known = turn.get(SAMPLE_FIELD) if turn is not None else None
        same = sample is not None and known == sample
        different = sample is not None and known is not None and known != sample
        if turn is None or different or not (same or goes_on(turn)):
            turn = {"role": "assistant", "content": ""}
            self.messages.append(turn)
            self._open = turn
        if sample is not None:
            turn[SAMPLE_FIELD] = sample
        return turn


def _message(turns: _Turns, item: Item, at: str) -> None:
    role = item.get("role")
    if role not in _ROLES:
        refuse(f"{at}.role is {quote_value(role, 100)}; known: {', '.join(_ROLES)}", f"{at}.role")
    content = _content(item.get("content"), f"{at}.content")
    if role != "assistant":
        turns.add({"role": role, "content": content})
        return
    turn = turns.assistant(item, goes_on=lambda t: not t["content"] and "tool_calls" not in t)
    turn["content"] += content


def _reasoning(turns: _Turns, item: Item, at: str) -> None:
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list):
        refuse(f"{at}.content must be a list of parts, not {quote_value(parts)}", f"{at}.content")
    text = "".join(_text(part, "text", f"{at}.content") for part in parts)
    turn = turns.assistant(item, goes_on=lambda _: False)
    if text:
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text


def _call(turns: _Turns, item: Item, at: str) -> None:
    kind = BY_CALL[item["type"]]
    name, namespace = item.get("name") or "", item.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        refuse(
            f"{at}.name and {at}.namespace must be texts, not {quote_value(name)}, {quote_value(namespace)}",
            at,
        )
    value = item.get(kind.field, "{}" if kind is FUNCTION else "")
    if kind.type == "custom" and not isinstance(value, str):
        refuse(f"{at}.input must be a text, not {quote_value(value)}", f"{at}.input")
    # A small model may write a call without a name: it is shown what it wrote.
    shown = shown_name(name, namespace) if kind.named else kind.type
    function = {"name": shown, "arguments": kind.read(value)}
    call = {"id": _text(item, "call_id", at), "type": "function", "function": function}
    turn = turns.assistant(item, goes_on=lambda _: True)
    turn.setdefault("tool_calls", []).append(call)


def _output(turns: _Turns, item: Item, at: str) -> None:
    named = (
        "call_id" if item.get("call_id") is not None or item["type"] != "local_shell_call_output" else "id"
    )
    content = _result(turns, item, at)
    turns.add({"role": "tool", "tool_call_id": _text(item, named, at), "content": content})


def _result(turns: _Turns, item: Item, at: str) -> str:
    if item["type"] == TOOL_SEARCH_OUTPUT:
        # They stand where they were found: the prompt before them stays as it is.
        found = turns.tools.add(_tools_of(item, at), f"{at}.tools")
        return orjson.dumps([one["function"] for one in found]).decode()
    output = item.get("output")
    if item["type"] == "shell_call_output" and isinstance(output, list):
        return orjson.dumps(output).decode()
    text = "" if output is None else _content(output, f"{at}.output")
    if item["type"] == "apply_patch_call_output":
        return "\n".join(part for part in (str(item.get("status") or ""), text) if part)
    return text


def _additional_tools(turns: _Turns, item: Item, at: str) -> None:
    turns.tools.show(_tools_of(item, at), f"{at}.tools")


def _tools_of(item: Item, at: str) -> list[Any]:
    tools = item.get("tools")
    if not isinstance(tools, list):
        refuse(f"{at}.tools must be a list, not {quote_value(tools)}", f"{at}.tools")
    return tools


_READERS: dict[str, Callable[[_Turns, Item, str], None]] = {
    "message": _message,
    "reasoning": _reasoning,
    ADDITIONAL_TOOLS: _additional_tools,
    **dict.fromkeys(BY_CALL, _call),
    **dict.fromkeys(BY_OUTPUT, _output),
}


def _content(content: Any, at: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(f"{at} must be a text or a list of parts, not {quote_value(content)}", at)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else part
        text = part.get("text") if kind in _TEXTS else part.get("refusal") if kind == "refusal" else None
        if not isinstance(text, str):
            refuse(
                f"{at} has a part of type {quote_value(kind, 100)}; only text is supported",
                at,
                "unsupported_parameter",
            )
        texts.append(text)
    return "".join(texts)


def _text(item: Any, name: str, at: str) -> str:
    value = item.get(name) if isinstance(item, dict) else None
    if not isinstance(value, str) or (not value and name != "text"):
        refuse(f"{at}.{name} must be a text, not {quote_value(value)}", f"{at}.{name}")
    return value


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and its new input, as JSON."""

    response: bytes
    items: bytes
    previous: str | None

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self.response) + len(self.items)


class ResponseStore:
    """The least recently used are forgotten first."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._responses: OrderedDict[tuple[Tenant, str], StoredResponse] = OrderedDict()

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._bytes

    def keep(self, tenant: Tenant, response: dict[str, Any], items: list[Item]) -> None:
        """Remember a response, and what of its input was new."""
        stored = StoredResponse(orjson.dumps(response), orjson.dumps(items), response["previous_response_id"])
        self._responses[tenant, response["id"]] = stored
        self._bytes += stored.size
        while self._bytes > self._max_bytes and self._responses:
            _, forgotten = self._responses.popitem(last=False)
            self._bytes -= forgotten.size

    def response(self, tenant: Tenant, response_id: str) -> bytes:
        """The response as it was sent. Raises: NotFoundError."""
        return self._find(tenant, response_id).response

    def delete(self, tenant: Tenant, response_id: str) -> None:
        """Deletes a response. Responses that continue it cannot be continued any more. Raises:
        NotFoundError.
        """
        self._bytes -= self._find(tenant, response_id).size
        del self._responses[tenant, response_id]

    def conversation(self, tenant: Tenant, response_id: str) -> list[Item]:
        """All items up to and with the response's output, oldest first. Raises: NotFoundError."""
        newest = self._find(tenant, response_id, continued_by=response_id)
        output: list[Item] = decode_json(newest.response)["output"]
        return [*self.input_items(tenant, response_id), *output]

    def input_items(self, tenant: Tenant, response_id: str) -> list[Item]:
        """All items that the response answers, oldest first. Raises: NotFoundError."""
        parts: list[list[Item]] = []
        current: str | None = response_id
        while current is not None:
            stored = self._find(tenant, current, continued_by=response_id)
            parts.append(decode_json(stored.items))
            current = stored.previous
            if current is not None:
                before = self._find(tenant, current, continued_by=response_id)
                parts.append(decode_json(before.response)["output"])
        return [item for part in reversed(parts) for item in part]

    def item(self, tenant: Tenant, item_id: str) -> Item:
        """One item of a response's output. Raises: NotFoundError."""
        sample = parse_sample_id(item_id)
        if sample is not None:
            stored = self._find(tenant, response_id_of(sample))
            for item in decode_json(stored.response)["output"]:
                if item["id"] == item_id:
                    found: Item = item
                    return found
        raise NotFoundError(
            f"no item {quote_value(item_id)} is stored here: send the item itself",
            status=404,
            code="item_not_found",
        )

    def _find(self, tenant: Tenant, response_id: str, *, continued_by: str | None = None) -> StoredResponse:
        stored = self._responses.get((tenant, response_id))
        if stored is None:
            named = continued_by not in (None, response_id)
            where = f" (which {quote_value(continued_by)} continues)" if named else ""
            raise NotFoundError(
                f"no response {quote_value(response_id)}{where} is stored here: it was not stored "
                "(store = false), was deleted, or is forgotten (a restart, the limit `stored_responses`); "
                "send the whole conversation as input",
                status=404,
                code="previous_response_not_found" if continued_by else "response_not_found",
            )
        with contextlib.suppress(KeyError):
            # A thread may ask, while the event loop lets it go.
            self._responses.move_to_end((tenant, response_id))
        return stored


def response_id_of(sample_id: str) -> str:
    """The id of the response that a sample is."""
    return f"resp_{sample_id.rpartition('_')[2]}"
