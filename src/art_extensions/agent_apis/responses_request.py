"""A request of the Responses API is read into the chat completion that it asks for: its options in the chat
API's words, its items as messages.

A field acts, is refused by its name where leaving it out would change the reply, or is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from art.errors import RequestError
from art.server.chat.chat_request import CHAT, EFFORT, ChatRequest, read_chat_request
from art.server.chat.request_fields import (
    MOST_UNKNOWN,
    OTHER_FIELDS,
    LeftOutParts,
    RequestField,
    RequestSchema,
    check_object,
)
from art.server.tenancy import Tenant
from art.wire.quoting import quote_value
from art.wire.request_values import FLAG, OBJECT, TEXT, ByHand, Idle, Values, refuse
from art.wire.sampling import PARAMETERS
from art_extensions.agent_apis.responses_items import ResponseStore, chat_messages, read_items
from art_extensions.agent_apis.responses_tools import Item, RequestTools, chat_tool_choice

ROUTE = "/v1/responses"
_NOT_TOLD = "it is not part of the prompt"
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


def chat_format(text: dict[str, Any], left_out: LeftOutParts) -> dict[str, Any] | None:
    """`response_format` of a `text`; None for plain text. Raises: RequestError."""
    left_out.skip_others(text, ("format", "verbosity"), "text", "text", _NOT_TOLD)
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
            f"text.format is of type {quote_value(kind, 100)}; supported: 'text', 'json_object', "
            "'json_schema'",
            "text.format",
        )
    schema = {name: value for name, value in wanted.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


_OF_REASONING = ("effort", "summary", "generate_summary")
"""The known fields of `reasoning`. A summary may be asked for: the reply has the reasoning itself."""


def effort_of(reasoning: dict[str, Any], request: ChatRequest, left_out: LeftOutParts) -> None:
    """Sets the effort of the request. Raises: RequestError for an unsupported one."""
    left_out.skip_others(reasoning, _OF_REASONING, "reasoning", "reasoning", _NOT_TOLD)
    request.effort_field = "reasoning.effort"
    if reasoning.get("effort") is not None:
        request.reasoning_effort = EFFORT.read("reasoning.effort", reasoning["effort"])


def includes_logprobs(include: list[Any], left_out: LeftOutParts) -> bool:
    """Returns whether logprobs are asked for. Raises: RequestError for too many, or if strict."""
    if len(include) > MOST_UNKNOWN:
        refuse(f"include has {len(include):,} entries; at most {MOST_UNKNOWN} are read", "include")
    for one in include:
        if one != LOGPROBS and one not in _NOTHING_TO_INCLUDE:
            left_out.skip("include", f"include = {quote_value(one, 100)}", "a response has no such part")
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
"""Field of a response's request -> the chat completion's field that it is read as."""

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
        "truncation": Idle("", "disabled", "auto"),
        "conversation": Idle(""),
        "prompt": Idle(""),
        "context_management": Idle("", []),
        **dict.fromkeys(("client_metadata", "stream_options", "max_tool_calls"), Idle("", anything=True)),
    },
    quoted=200,
    elsewhere=CHAT.fields,
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
    tools: RequestTools
    sent: dict[str, Any]
    """The body, for the fields that a response repeats."""


def read_responses_request(
    body: Any, store: ResponseStore, tenant: Tenant, left_out: LeftOutParts | None = None
) -> ResponsesRequest:
    """The request of a decoded JSON body. Raises: RequestError naming the field, NotFoundError."""
    check_object(body)
    left_out = left_out or LeftOutParts(ROUTE)
    body = {name: value for name, value in body.items() if value is not None}
    _check_names(body, left_out)
    items = read_items(body["input"])
    for name in _OWN:
        RESPONSES.read_field(name, body.get(name))
    previous = body.get("previous_response_id")
    tools = RequestTools(left_out)
    tools.show(body.get("tools", ()), "tools")
    messages = _messages(body, items, tools, store, tenant)
    return ResponsesRequest(
        chat=_chat(body, messages, tools, left_out),
        items=items,
        previous=previous,
        store=body.get("store", True),
        logprobs=includes_logprobs(body.get("include", []), left_out),
        tools=tools,
        sent=body,
    )


def _check_names(body: dict[str, Any], left_out: LeftOutParts) -> None:
    RESPONSES.check_number(body)
    for name, value in body.items():
        if name not in RESPONSES.fields:
            RESPONSES.check_other_field(name, value, left_out)
    for name in RESPONSES.required:
        if name not in body:
            refuse(f"{name!r} is missing", name, "missing_parameter")


def _messages(
    body: dict[str, Any], items: list[Item], tools: RequestTools, store: ResponseStore, tenant: Tenant
) -> list[dict[str, Any]]:
    """Instructions, what the earlier response answered and said, and what is new."""

    def find(item_id: str) -> Item:
        return store.item(tenant, item_id)

    instructions, previous = body.get("instructions"), body.get("previous_response_id")
    opening = [] if instructions is None else [{"role": "system", "content": instructions}]
    earlier = [] if previous is None else store.conversation(tenant, previous)
    # Read apart: what an error calls input[0] is the first item of this request.
    messages = [
        *opening,
        *chat_messages(earlier, tools, find=find),
        *chat_messages(items, tools, find=find),
    ]
    if not messages:
        refuse("input is empty: there is nothing to answer", "input")
    return messages


def _chat(
    body: dict[str, Any], messages: list[dict[str, Any]], tools: RequestTools, left_out: LeftOutParts
) -> ChatRequest:
    chat = {spelled: body[name] for name, spelled in _AS_IN_CHAT.items() if name in body}
    chat["messages"] = messages
    chat["tools"] = tools.functions
    if "tool_choice" in body:
        chat["tool_choice"] = chat_tool_choice(body["tool_choice"])
    if "text" in body:
        chat["response_format"] = chat_format(body["text"], left_out)
    if body.get("top_logprobs", 0) is not False and body.get("top_logprobs", 0) != 0:
        if LOGPROBS not in body.get("include", ()):
            refuse(f"top_logprobs needs include = [{LOGPROBS!r}]", "top_logprobs")
        chat |= {"logprobs": True, "top_logprobs": body["top_logprobs"]}
    try:
        request = read_chat_request(chat, max_n=1)
        effort_of(body.get("reasoning", {}), request, left_out)
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
