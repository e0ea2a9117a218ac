"""POST /v1/responses, and the lookups of what it stored."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art.server.bodies import Beside
from art.server.dialects.chat_sampling import Sampler
from art.server.dialects.dialect import Dialect
from art.server.dialects.event_stream import stream_reply
from art.server.dialects.refusal import refuse
from art.server.dialects.responses_items import Item
from art.server.dialects.responses_reply import output_of, response_of, status_of_end
from art.server.dialects.responses_request import ResponsesRequest, read_responses_request
from art.server.dialects.responses_store import ResponseStore
from art.server.dialects.responses_stream import ResponseEvents
from art.server.dialects.told import told
from art.server.dialects.whole import whole
from art.server.http import Scope, Send, send_json
from art.server.settings import LimitSettings
from art.server.tenants.tenancy import Tenant, tenant_in

_LIST_LIMIT = 100


class Responses(Dialect):
    """Answers the Responses API, whole or streamed."""

    def __init__(self, sampler: Sampler, limits: LimitSettings, beside: Beside | None = None) -> None:
        super().__init__(sampler, limits, beside)
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
        return read_responses_request(body, self._store, tenant_in(scope))

    async def answer(self, scope: Scope, asked: ResponsesRequest, send: Send) -> None:
        """Sample what is asked for."""
        tenant = tenant_in(scope)
        target = await self.target_of(scope, asked.chat)
        async with self.sampler.catalog.lease(target):
            prepared = await self.prepare(scope, asked.chat, target)
            if asked.chat.stream:
                writer = ResponseEvents(asked, prepared, lambda one: self._keep(tenant, asked, one))
                if await stream_reply(told(self.sampler, prepared), writer, send):
                    self.sampler.delivered(prepared)
                return
            (done,) = await whole(self.sampler, prepared)
            status = status_of_end(done.finish)
            output = output_of(asked, prepared, done.completion, done.message, status)
            response = response_of(asked, prepared, done.completion, status=status, output=output)
            self._keep(tenant, asked, response)
            await send_json(send, orjson.dumps(response))
            self.sampler.delivered(prepared)

    def _keep(self, tenant: Tenant, asked: ResponsesRequest, response: dict[str, Any]) -> None:
        if asked.store:
            self._store.keep(tenant, response, asked.items)

    async def stored(self, request: Request) -> Response:
        """A stored response. Raises: NotFoundError, RequestError."""
        for name, value in request.query_params.items():
            if name not in ("include", "include[]", "stream", "include_obfuscation") or value == "true":
                refuse(f"{name} = {value!r} is not supported: a stored response is told whole", name)
        body = self._store.response(tenant_in(request.scope), request.path_params["response_id"])
        return Response(body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """Forget a stored response. Raises: NotFoundError."""
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
    if not text.isdecimal() or not 1 <= int(text) <= _LIST_LIMIT:
        refuse(f"limit must be a whole number from 1 to {_LIST_LIMIT}, not {text!r}", "limit")
    return int(text)


def _listed(item: Item, response_id: str, index: int) -> Item:
    """The item with an id and its content in parts, as lists have them."""
    listed = {"id": f"in_{response_id.rpartition('_')[2]}_{index}", "status": "completed", **item}
    if item["type"] == "message" and isinstance(item.get("content"), str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        listed["content"] = [{"type": kind, "text": item["content"]}]
    return listed
