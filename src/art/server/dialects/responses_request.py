"""A request of the Responses API is read into the chat completion that it asks for: its options in the chat
API's words, its items as messages.

Each field acts, is refused by its name, or `OTHER_FIELDS` says what becomes of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from art.errors import RequestError
from art.server.chat.chat_request import CHAT, EFFORT, ChatRequest, read_chat_request
from art.server.chat.request_fields import OTHER_FIELDS, RequestField, RequestSchema, check_object
from art.server.dialects.responses_items import Item, ResponseStore, chat_messages, read_items
from art.server.tenancy import Tenant
from art.wire.request_values import FLAG, OBJECT, TEXT, ByHand, Idle, Values, refuse
from art.wire.sampling import PARAMETERS

LOGPROBS = "message.output_text.logprobs"

_NOTHING_TO_INCLUDE = (
    # Our reasoning items hold the reasoning itself, so they can be sent back as they are.
    "reasoning.encrypted_content",
    # Of tools and inputs that are refused.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)

_NEUTRAL_OF_TOOL: dict[str, tuple[Any, ...]] = {
    "allowed_callers": (None, ["direct"]),
    "async": (None, False),
    "defer_loading": (None, False),
    "output_schema": (None,),
}


def chat_tools(tools: list[Any]) -> list[dict[str, Any]]:
    """Function tools as the chat API spells them. Raises: RequestError naming the tool."""
    return [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _tool(tool: Any, at: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else tool
    if kind != "function":
        refuse(
            f"{at} is of type {kind!r:.100}; only 'function' is supported: tools run where the agent runs",
            at,
            "unsupported_parameter",
        )
    function = {}
    for name, value in tool.items():
        if name in _NEUTRAL_OF_TOOL:
            if value not in _NEUTRAL_OF_TOOL[name]:
                refuse(f"{at}.{name} = {value!r:.200} is not supported", at, "unsupported_parameter")
        elif name in ("name", "description", "parameters", "strict"):
            if value is not None:
                function[name] = value
        elif name != "type":
            refuse(f"{at}.{name} is not supported", at, "unsupported_parameter")
    return {"type": "function", "function": function}


def chat_tool_choice(choice: Any) -> Any:
    """The choice as the chat API spells it. Raises: RequestError."""
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    allowed = choice.get("tools")
    if kind == "allowed_tools" and isinstance(allowed, list):
        named = [{"type": "function", "function": {"name": _name_of(one)}} for one in allowed]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    refuse(
        f"tool_choice of type {kind!r:.100} is not supported; supported: auto, none, required, function",
        "tool_choice",
        "unsupported_parameter",
    )


def _name_of(tool: Any) -> Any:
    return tool.get("name") if isinstance(tool, dict) else None


def chat_format(text: dict[str, Any]) -> dict[str, Any] | None:
    """`response_format` of a `text`; None for plain text. Raises: RequestError."""
    for name, value in text.items():
        if name not in ("format", "verbosity") and value is not None:
            refuse(f"text.{name} = {value!r:.100} is not supported", f"text.{name}", "unsupported_parameter")
    wanted = text.get("format")
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, dict) else wanted
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind != "json_schema":
        refuse(
            f"text.format is of type {kind!r:.100}; supported: 'text', 'json_object', 'json_schema'",
            "text.format",
        )
    schema = {name: value for name, value in wanted.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


_OF_REASONING = ("effort", "summary", "generate_summary")
"""A summary may be asked for: reasoning is told as it is, which says all that one would."""


def effort_of(reasoning: dict[str, Any], request: ChatRequest) -> None:
    """Sets the effort of the request. Raises: RequestError for an unsupported one."""
    for name, value in reasoning.items():
        if name not in _OF_REASONING and value is not None:
            refuse(
                f"reasoning.{name[:100]} = {value!r:.100} is not supported: reasoning is told as it is",
                f"reasoning.{name[:100]}",
                "unsupported_parameter",
            )
    for name in ("summary", "generate_summary"):
        value = reasoning.get(name)
        if value is not None and value not in ("auto", "concise", "detailed"):
            refuse(
                f"reasoning.{name} must be auto, concise or detailed, not {value!r:.100}", f"reasoning.{name}"
            )
    request.effort_field = "reasoning.effort"
    if reasoning.get("effort") is not None:
        request.reasoning_effort = EFFORT.read("reasoning.effort", reasoning["effort"])


def includes_logprobs(include: list[Any]) -> bool:
    """Returns whether logprobs are asked for. Raises: RequestError for what cannot be included."""
    for one in include:
        if one != LOGPROBS and one not in _NOTHING_TO_INCLUDE:
            known = ", ".join((LOGPROBS, *_NOTHING_TO_INCLUDE))
            refuse(f"include has {one!r:.100}; known: {known}", "include", "unsupported_parameter")
    return LOGPROBS in include


_AS_IN_CHAT = {
    "model": "model",
    "stream": "stream",
    "max_output_tokens": "max_tokens",
    "metadata": "metadata",
    "parallel_tool_calls": "parallel_tool_calls",
    **{name: name for name, one in PARAMETERS.items() if "responses" in one.routes},
    # Beyond the API, for those who train.
    "ignore_eos": "ignore_eos",
    "include_stop_str_in_output": "include_stop_str_in_output",
    "chat_template_kwargs": "chat_template_kwargs",
}
"""Read as the chat completion's field of this name."""

_OBJECTS = {"type": "array", "items": OBJECT.schema}
_OWN: dict[str, RequestField] = {
    "input": RequestField(ByHand({"anyOf": [TEXT.schema, _OBJECTS]})),
    "previous_response_id": RequestField(Values(str, "the id of a response")),
    "store": RequestField(FLAG),
    "instructions": RequestField(TEXT),
    "tools": RequestField(Values(list[Any], "a list", schema=_OBJECTS)),
    "tool_choice": RequestField(ByHand({"anyOf": [TEXT.schema, OBJECT.schema]})),
    "text": RequestField(OBJECT),
    "include": RequestField(Values(list[Any], "a list", schema={"type": "array", "items": TEXT.schema})),
    "reasoning": RequestField(OBJECT),
}
RESPONSES = RequestSchema(
    {
        **{name: CHAT.fields[spelled] for name, spelled in _AS_IN_CHAT.items()},
        "top_logprobs": CHAT.fields["top_logprobs"],
        **_OWN,
    },
    required=("model", "input"),
    idle={
        **OTHER_FIELDS,
        "background": Idle("", False),
        "truncation": Idle("", "disabled"),
        "stream_options": Idle("", {}, {"include_obfuscation": False}),
        "conversation": Idle(""),
        "prompt": Idle(""),
        "max_tool_calls": Idle(""),
        "context_management": Idle("", []),
    },
    quoted=200,
)

_OUR_WORDS = {"max_tokens": "max_output_tokens", "response_format": "text.format", "messages": "input"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponsesRequest:
    """A request of `/v1/responses`."""

    chat: ChatRequest
    items: list[Item]
    """The input of this request alone."""
    previous: str | None
    store: bool
    logprobs: bool
    sent: dict[str, Any]
    """The body, for the fields that a response repeats."""


def read_responses_request(body: Any, store: ResponseStore, tenant: Tenant) -> ResponsesRequest:
    """The request of a decoded JSON body. Raises: RequestError naming the field, NotFoundError."""
    check_object(body)
    body = {name: value for name, value in body.items() if value is not None}
    _check_names(body)
    items = read_items(body["input"])
    for name in _OWN:
        RESPONSES.read_field(name, body.get(name))
    previous = body.get("previous_response_id")
    return ResponsesRequest(
        chat=_chat(body, _messages(body, items, previous, store, tenant)),
        items=items,
        previous=previous,
        store=body.get("store", True),
        logprobs=includes_logprobs(body.get("include", [])),
        sent=body,
    )


def _check_names(body: dict[str, Any]) -> None:
    for name, value in body.items():
        if name not in RESPONSES.fields:
            RESPONSES.check_other_field(name, value)
    for name in RESPONSES.required:
        if name not in body:
            refuse(f"{name!r} is missing", name, "missing_parameter")


def _messages(
    body: dict[str, Any], items: list[Item], previous: str | None, store: ResponseStore, tenant: Tenant
) -> list[dict[str, Any]]:
    """Instructions, what the earlier response answered and said, and what is new."""

    def find(item_id: str) -> Item:
        return store.item(tenant, item_id)

    instructions = body.get("instructions")
    opening = [] if instructions is None else [{"role": "system", "content": instructions}]
    earlier = [] if previous is None else store.conversation(tenant, previous)
    # Read apart: what an error calls input[0] is the first item of this request.
    messages = [*opening, *chat_messages(earlier, find=find), *chat_messages(items, find=find)]
    if not messages:
        refuse("input is empty: there is nothing to answer", "input")
    return messages


def _chat(body: dict[str, Any], messages: list[dict[str, Any]]) -> ChatRequest:
    chat = {spelled: body[name] for name, spelled in _AS_IN_CHAT.items() if name in body}
    chat["messages"] = messages
    if "tools" in body:
        chat["tools"] = chat_tools(body["tools"])
    if "tool_choice" in body:
        chat["tool_choice"] = chat_tool_choice(body["tool_choice"])
    if "text" in body:
        chat["response_format"] = chat_format(body["text"])
    if body.get("top_logprobs", 0) is not False and body.get("top_logprobs", 0) != 0:
        if not includes_logprobs(body.get("include", [])):
            refuse(f"top_logprobs needs include = [{LOGPROBS!r}]", "top_logprobs")
        chat |= {"logprobs": True, "top_logprobs": body["top_logprobs"]}
    try:
        request = read_chat_request(chat, max_n=1)
        effort_of(body.get("reasoning", {}), request)
        request.constrained_by = _OUR_WORDS.get(request.constrained_by, request.constrained_by)
        return request
    except RequestError as error:
        name = re.split(r"[.\[]", error.param or "")[0]
        if name not in _OUR_WORDS:
            raise
        ours = _OUR_WORDS[name]
        raise RequestError(
            str(error).replace(name, ours), status=error.status, code=error.code, param=ours
        ) from error
