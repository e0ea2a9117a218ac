"""POST /v1/responses, and the lookups of what it stored.

A response has items, each naming its sample. In a stream each item is opened, told and closed, all events
numbered.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art.errors import ARTError, OverloadedError
from art.rendering.reply import is_object
from art.server.chat.prompt_and_reply import Completion, PreparedRequest, logprobs_of
from art.server.dialects.completion_service import (
    CallPiece,
    ChoiceFinished,
    CompletionService,
    StreamEvent,
    StreamStarted,
    complete_request,
    stream_reply_events,
)
from art.server.dialects.dialect import AgentDialect, named_event, send_stream
from art.server.http import Scope, Send, TenantThreads, error_body, send_json
from art.server.settings import LimitSettings
from art.server.tenancy import Tenant, tenant_in
from art.wire.request_values import refuse
from art.wire.rollouts import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD
from art_extensions.agent_apis.responses_items import ResponseStore, response_id_of
from art_extensions.agent_apis.responses_request import ROUTE, ResponsesRequest, read_responses_request
from art_extensions.agent_apis.responses_tools import FUNCTION, Item, RequestTools

_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "prompt_cache_key": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields that a response has of its request, and what they are where they were not sent."""


def response_of(
    request: ResponsesRequest,
    prepared: PreparedRequest,
    completion: Completion,
    *,
    status: str,
    output: list[Item],
) -> dict[str, Any]:
    """A response; `status`: `in_progress`, `completed`, `incomplete` or `failed`."""
    ended = status in ("completed", "incomplete")
    response: dict[str, Any] = {
        "id": response_id_of(completion.sample_id),
        "object": "response",
        "created_at": int(prepared.created_at),
        "completed_at": int(time.time()) if status == "completed" else None,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": request.chat.model,
        "output": output,
        "service_tier": "default",
        "top_logprobs": request.chat.top_logprobs,
        "usage": _usage(prepared, completion, output) if ended else None,
        **{name: request.sent.get(name, default) for name, default in _REPEATED.items()},
        SAMPLE_FIELD: completion.sample_id,
        STEP_FIELD: prepared.target.step,
        "system_fingerprint": prepared.fingerprint,
    }
    if ended:
        response[TOKENS_FIELD] = len(completion.token_ids)
    return response


def output_of(
    request: ResponsesRequest,
    prepared: PreparedRequest,
    completion: Completion,
    message: dict[str, Any],
    status: str,
) -> list[Item]:
    """The items of an assistant's message: its reasoning, its text, its calls."""
    sample_id, content, calls = completion.sample_id, message["content"], message.get("tool_calls", ())
    reasoning = message.get("reasoning_content")
    items = [reasoning_item(sample_id, reasoning, "completed")] if reasoning else []
    if content or not (items or calls):
        logprobs = text_logprobs(prepared, completion) if request.logprobs else None
        items.append(message_item(sample_id, content or "", status, logprobs))
    for call in calls:
        ends = status if call is calls[-1] else "completed"
        items.append(call_item(request.tools, sample_id, call, status_of_call(call, ends)))
    return items


def reasoning_item(sample_id: str, text: str | None, status: str) -> Item:
    """Returns the model's full reasoning; without a text there is no content yet."""
    content = [] if text is None else [reasoning_part(text)]
    own = {"id": _item_id("rs", sample_id), "type": "reasoning", "status": status}
    return {**own, "summary": [], "content": content, SAMPLE_FIELD: sample_id}


def message_item(
    sample_id: str, text: str | None, status: str, logprobs: list[dict[str, Any]] | None = None
) -> Item:
    """Returns the model's message; without a text there is no content yet."""
    own = {"id": _item_id("msg", sample_id), "type": "message", "role": "assistant", "status": status}
    return {**own, "content": [] if text is None else [text_part(text, logprobs)], SAMPLE_FIELD: sample_id}


def call_item(
    tools: RequestTools,
    sample_id: str,
    call: dict[str, Any],
    status: str,
    *,
    arguments: str | None = None,
) -> Item:
    """A call, as an item of its tool's type; its `call_id` names the sample, too."""
    number, function = call["id"].rpartition("_")[2], call["function"]
    return {
        "id": f"{_item_id('fc', sample_id)}_{number}",
        "status": status,
        "call_id": call["id"],
        **tools.call_fields(function, function["arguments"] if arguments is None else arguments),
        SAMPLE_FIELD: sample_id,
    }


def text_part(text: str, logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def reasoning_part(text: str) -> dict[str, Any]:
    """A part of a reasoning item."""
    return {"type": "reasoning_text", "text": text}


def text_logprobs(prepared: PreparedRequest, completion: Completion) -> list[dict[str, Any]]:
    """One entry for each sampled id, those of reasoning and calls included."""
    renderer = prepared.target.renderer
    logprobs = logprobs_of(renderer, completion.token_ids, completion.logprobs, completion.tops)
    content: list[dict[str, Any]] = logprobs["content"]
    return content


def status_of_end(finish: str) -> str:
    """The status of a response whose choice ended so."""
    return "incomplete" if finish == "length" else "completed"


def status_of_call(call: dict[str, Any], status: str) -> str:
    """`incomplete` for a last call in which a response of that status was cut off."""
    is_complete = status != "incomplete" or is_object(call["function"]["arguments"])
    return "completed" if is_complete else "incomplete"


def _item_id(kind: str, sample_id: str) -> str:
    return f"{kind}_{sample_id.rpartition('_')[2]}"


def _usage(prepared: PreparedRequest, completion: Completion, output: list[Item]) -> dict[str, Any]:
    prompt, sampled = len(prepared.stitched.prompt_ids), len(completion.token_ids)
    thought = "".join(
        part["text"] for item in output if item["type"] == "reasoning" for part in item["content"]
    )
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        # Counted from the text: where thinking ends among the ids is the format's own affair.
        "output_tokens_details": {
            "reasoning_tokens": min(sampled, len(prepared.target.renderer.encode(thought))) if thought else 0
        },
        "total_tokens": prompt + sampled,
    }


class ResponseEvents:
    """Writes the events; `keep` is given the whole response before its end is told."""

    def __init__(
        self, request: ResponsesRequest, prepared: PreparedRequest, keep: Callable[[dict[str, Any]], None]
    ) -> None:
        self._request, self._prepared, self._keep = request, prepared, keep
        self._number = 0
        self._output: list[Item] = []
        self._texts: dict[str, str] = {}
        """Kind of an open item -> the text sent of it so far."""
        self._thinking = True
        self._calls: list[CallPiece] = []
        """Pieces of calls that are still to be sent."""
        self._call: dict[str, Any] | None = None
        """The call whose item is open; None: none is."""
        self._completion: Completion | None = None
        self._last = b""

    def write(self, event: StreamEvent) -> bytes:
        """The events of what is new."""
        if isinstance(event, StreamStarted):
            self._completion = event.choices[0].completion
            response = self._response("in_progress")
            return self._event("response.created", response=response) + self._event(
                "response.in_progress", response=response
            )
        events = b""
        # A thought that goes on after the answer has begun has no place any more.
        if event.reasoning and self._thinking:
            events += self._delta_event("reasoning", event.reasoning)
        if event.content:
            events += self._end_of_thought() + self._delta_event("message", event.content)
        self._calls += event.calls
        if isinstance(event, ChoiceFinished):
            return events + self._end(event)
        # How a text ended, and its logprobs, are known at the end of the reply.
        return events if "message" in self._texts else events + self._tell_calls()

    def close(self) -> bytes:
        """The whole response."""
        return self._last

    def fail(self, error: ARTError) -> bytes:
        """`response.failed`."""
        code = "rate_limit_exceeded" if isinstance(error, OverloadedError) else "server_error"
        message = error_body(error, self._prepared.tenant)["error"]["message"]
        failed = {**self._response("failed"), "error": {"code": code, "message": message}}
        return self._event("response.failed", response=failed)

    def _delta_event(self, kind: str, text: str) -> bytes:
        opened = b""
        if kind not in self._texts:
            opened = self._open(kind)
        self._texts[kind] += text
        if kind == "reasoning":
            return opened + self._part_event("response.reasoning_text.delta", delta=text)
        return opened + self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def _open(self, kind: str) -> bytes:
        make, part = (reasoning_item, reasoning_part) if kind == "reasoning" else (message_item, text_part)
        self._texts[kind] = ""
        self._output.append(make(self._sample_id, None, "in_progress"))
        return self._item_event("added") + self._part_event("response.content_part.added", part=part(""))

    def _end_of_thought(self) -> bytes:
        if not self._thinking:
            return b""
        self._thinking = False
        if "reasoning" not in self._texts:
            return b""
        text = self._texts["reasoning"]
        self._output[-1] = reasoning_item(self._sample_id, text, "completed")
        return (
            self._part_event("response.reasoning_text.done", text=text)
            + self._part_event("response.content_part.done", part=reasoning_part(text))
            + self._item_event("done")
        )

    def _end_of_text(self, status: str) -> bytes:
        assert self._completion is not None
        text = self._texts["message"]
        logprobs = text_logprobs(self._prepared, self._completion) if self._request.logprobs else []
        self._output[-1] = message_item(self._sample_id, text, status, logprobs)
        return (
            self._part_event("response.output_text.done", text=text, logprobs=logprobs)
            + self._part_event("response.content_part.done", part=text_part(text, logprobs))
            + self._item_event("done")
        )

    def _end(self, event: ChoiceFinished) -> bytes:
        status = status_of_end(event.finish)
        events = self._end_of_thought()
        if "message" not in self._texts and not (self._output or self._calls):
            events += self._open("message")
        if "message" in self._texts:
            events += self._end_of_text(status)
        events += self._tell_calls() + self._end_of_call(status)
        response = self._response(status)
        self._keep(response)
        self._last = self._event(f"response.{status}", response=response)
        return events

    def _tell_calls(self) -> bytes:
        events, pieces = b"", self._calls
        self._calls = []
        for piece in pieces:
            if piece.opens:
                events += self._end_of_thought() + self._end_of_call("completed")
                self._output.append(self._call_item(piece.call, "in_progress", arguments=""))
                events += self._item_event("added")
            self._call = piece.call
            if piece.arguments and self._output[-1]["type"] == FUNCTION.call:
                events += self._call_event("delta", delta=piece.arguments)
        return events

    def _end_of_call(self, status: str) -> bytes:
        """Returns the end of the open call, if any; `status`: of the response, if it ends with it."""
        call, self._call = self._call, None
        if call is None:
            return b""
        item = self._output[-1] = self._call_item(call, status_of_call(call, status))
        events = b""
        if item["type"] == FUNCTION.call:
            events = self._call_event("done", name=item["name"], arguments=item["arguments"])
        elif item["type"] == "custom_tool_call":
            # Known when its JSON has ended: the text inside is what the tool takes.
            events = self._input_event("delta", delta=item["input"]) + self._input_event(
                "done", input=item["input"]
            )
        return events + self._item_event("done")

    def _call_item(self, call: dict[str, Any], status: str, *, arguments: str | None = None) -> Item:
        return call_item(self._request.tools, self._sample_id, call, status, arguments=arguments)

    @property
    def _sample_id(self) -> str:
        assert self._completion is not None
        return self._completion.sample_id

    def _response(self, status: str) -> dict[str, Any]:
        assert self._completion is not None
        output = [] if status == "in_progress" else self._output
        return response_of(self._request, self._prepared, self._completion, status=status, output=output)

    def _item_event(self, what: str) -> bytes:
        index = len(self._output) - 1
        return self._event(f"response.output_item.{what}", output_index=index, item=self._output[index])

    def _call_event(self, what: str, **fields: Any) -> bytes:
        return self._event(f"response.function_call_arguments.{what}", **self._place(), **fields)

    def _input_event(self, what: str, **fields: Any) -> bytes:
        return self._event(f"response.custom_tool_call_input.{what}", **self._place(), **fields)

    def _place(self) -> dict[str, Any]:
        index = len(self._output) - 1
        return {"item_id": self._output[index]["id"], "output_index": index}

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, **self._place(), content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        return named_event(kind, {"type": kind, "sequence_number": number, **fields})


MOST_ITEMS = 100


class Responses(AgentDialect):
    """Answers the Responses API, whole or streamed."""

    route = ROUTE

    def __init__(
        self,
        service: CompletionService,
        limits: LimitSettings,
        threads: TenantThreads | None = None,
        counts: Counter[tuple[str, str]] | None = None,
    ) -> None:
        """See `AgentDialect`."""
        super().__init__(service, limits, threads, counts)
        self._store = ResponseStore(max_bytes=limits.stored_responses)
        self.routes = [
            Route("/v1/responses/{response_id}", self.stored, methods=["GET"]),
            Route("/v1/responses/{response_id}", self.delete, methods=["DELETE"]),
            Route("/v1/responses/{response_id}/input_items", self.input_items, methods=["GET"]),
        ]

    def size(self, body: bytes) -> int:
        """Bytes that are read with a body: those of an earlier response, too, that it names."""
        earlier = b"previous_response_id" in body or b"item_reference" in body
        return len(body) + (self._store.size if earlier else 0)

    def read(self, scope: Scope, body: Any) -> ResponsesRequest:
        """The request of a decoded body. Raises: RequestError, NotFoundError."""
        return read_responses_request(body, self._store, tenant_in(scope), self.left_out)

    async def answer(self, scope: Scope, request: ResponsesRequest, send: Send) -> None:
        """Sample what is asked for."""
        tenant = tenant_in(scope)
        target = await self.target_of(scope, request.chat)
        with self.service.catalog.using(target):
            prepared = await self.prepare(scope, request.chat, target)
            if request.chat.stream:
                writer = ResponseEvents(request, prepared, lambda one: self._keep(tenant, request, one))
                if await send_stream(stream_reply_events(self.service, prepared), writer, send):
                    self.service.delivered(prepared)
                return
            (done,) = await complete_request(self.service, prepared)
            status = status_of_end(done.finish)
            output = output_of(request, prepared, done.completion, done.message, status)
            response = response_of(request, prepared, done.completion, status=status, output=output)
            self._keep(tenant, request, response)
            await send_json(send, orjson.dumps(response))
            self.service.delivered(prepared)

    def _keep(self, tenant: Tenant, request: ResponsesRequest, response: dict[str, Any]) -> None:
        if request.store:
            self._store.keep(tenant, response, request.items)

    async def stored(self, request: Request) -> Response:
        """A stored response. Raises: NotFoundError, RequestError."""
        for name, value in request.query_params.items():
            if name not in ("include", "include[]", "stream", "include_obfuscation") or value == "true":
                refuse(f"{name} = {value!r} is not supported: a stored response is returned whole", name)
        body = self._store.response(tenant_in(request.scope), request.path_params["response_id"])
        return Response(body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """Deletes a stored response. Raises: NotFoundError."""
        response_id = request.path_params["response_id"]
        self._store.delete(tenant_in(request.scope), response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """The items that a response answers, the newest first. Raises: NotFoundError, RequestError."""
        tenant, response_id = tenant_in(request.scope), request.path_params["response_id"]
        given = self._store.input_items(tenant, response_id)
        items = [_listed(item, response_id, index) for index, item in enumerate(given)]
        query = request.query_params
        if query.get("order", "desc") != "asc":
            items.reverse()
        after = _place_after(items, query["after"]) if "after" in query else 0
        limit = _limit(query.get("limit", "20"))
        page = items[after : after + limit]
        return JSONResponse(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else "",
                "last_id": page[-1]["id"] if page else "",
                "has_more": after + limit < len(items),
            }
        )


def _place_after(items: list[Item], item_id: str) -> int:
    for index, item in enumerate(items):
        if item["id"] == item_id:
            return index + 1
    refuse(f"after = {item_id!r} is no item of this list", "after")


def _limit(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_ITEMS:
        refuse(f"limit must be a whole number from 1 to {MOST_ITEMS}, not {text!r}", "limit")
    return int(text)


def _listed(item: Item, response_id: str, index: int) -> Item:
    """The item with an id and its content in parts, as lists have them."""
    listed = {"id": f"in_{response_id.rpartition('_')[2]}_{index}", "status": "completed", **item}
    if item["type"] == "message" and isinstance(item.get("content"), str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        listed["content"] = [{"type": kind, "text": item["content"]}]
    return listed
