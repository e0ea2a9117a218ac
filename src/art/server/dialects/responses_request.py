"""A request of the Responses API, read into the chat completion that it asks for.

Each field acts, is refused by its name, or `other_fields` says what becomes of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from art.errors import RequestError
from art.server.dialects.chat_request import ChatRequest, read_chat_request
from art.server.dialects.other_fields import check_other
from art.server.dialects.refusal import refuse
from art.server.dialects.responses_items import Item, chat_messages, read_items
from art.server.dialects.responses_options import (
    LOGPROBS,
    chat_format,
    chat_tool_choice,
    chat_tools,
    effort_of,
    includes_logprobs,
)
from art.server.dialects.responses_store import ResponseStore
from art.server.tenants.tenancy import Tenant

_AS_IN_CHAT = {
    "model": "model",
    "stream": "stream",
    "temperature": "temperature",
    "top_p": "top_p",
    "max_output_tokens": "max_tokens",
    "metadata": "metadata",
    "parallel_tool_calls": "parallel_tool_calls",
    # Beyond the API, for those who train.
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "logit_bias": "logit_bias",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "ignore_eos": "ignore_eos",
    "include_stop_str_in_output": "include_stop_str_in_output",
    "chat_template_kwargs": "chat_template_kwargs",
}
"""Read as the chat completion's field of this name."""

_OWN = (
    "input",
    "instructions",
    "previous_response_id",
    "tools",
    "tool_choice",
    "text",
    "reasoning",
    "include",
    "top_logprobs",
    "store",
)

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "truncation": ("disabled",),
    "stream_options": ({}, {"include_obfuscation": False}),
    "conversation": (),
    "prompt": (),
    "max_tool_calls": (),
    "context_management": ([],),
}
"""Accepted with the value that asks for nothing."""

_OUR_WORDS = {"max_tokens": "max_output_tokens", "response_format": "text.format", "messages": "input"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponsesRequest:
    """What is asked for."""

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
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object", status=400, code="invalid_json")
    body = {name: value for name, value in body.items() if value is not None}
    _check_names(body)
    items = read_items(body["input"])
    previous = _checked(body, "previous_response_id", str, "the id of a response")
    keep = _checked(body, "store", bool, "true or false")
    return ResponsesRequest(
        chat=_chat(body, _messages(body, items, previous, store, tenant)),
        items=items,
        previous=previous,
        store=keep is not False,
        logprobs=includes_logprobs(body.get("include", [])),
        sent=body,
    )


def _check_names(body: dict[str, Any]) -> None:
    for name, value in body.items():
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                refuse(f"{name} = {value!r:.200} is not supported", name, "unsupported_parameter")
        elif name not in _AS_IN_CHAT and name not in _OWN:
            check_other(name, value, (*_AS_IN_CHAT, *_OWN))
    for name in ("model", "input"):
        if name not in body:
            refuse(f"{name!r} is missing", name, "missing_parameter")


def _messages(
    body: dict[str, Any], items: list[Item], previous: str | None, store: ResponseStore, tenant: Tenant
) -> list[dict[str, Any]]:
    """Instructions, what the earlier response answered and said, and what is new."""

    def find(item_id: str) -> Item:
        return store.item(tenant, item_id)

    instructions = _checked(body, "instructions", str, "a text")
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


def _checked(body: dict[str, Any], name: str, kind: type, what: str) -> Any:
    value = body.get(name)
    if value is not None and not isinstance(value, kind):
        refuse(f"{name} must be {what}, not {value!r:.200}", name)
    return value
