"""GET /openapi.json: the whole server as an OpenAPI 3.1 document."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import orjson
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from art.server.routes.openapi_operations import OPERATIONS, Operation, Shape
from art.server.routes.openapi_replies import ANTHROPIC_ERROR, OPENAI_ERROR
from art.server.routes.openapi_requests import Schema
from art.wire.headers import ROLLOUT_HEADER
from art.wire.strict import Strict

_REFERENCE = "#/components/schemas/{model}"
_ERRORS = {
    "400": "The request was refused: the message says what was wrong, `param` where",
    "401": "No key, or a wrong one",
    "403": "The key does not open this",
    "404": "No such model, sample, job or route",
    "405": "Another method",
    "408": "The body did not come in time",
    "409": "Something else is in the way",
    "413": "The body is too large",
    "429": "The queue is full; `Retry-After` says when to come back",
    "500": "The server failed; its log says why",
    "503": "A worker is being restarted: the same request will work again",
}
_ROLLOUT = {
    "name": ROLLOUT_HEADER,
    "in": "header",
    "required": False,
    "description": "The rollout that the completion belongs to",
    "schema": {"type": "string", "pattern": "^[ -~]{1,256}$"},
}
_PARAMETERS: dict[str, Schema] = {"step": {"type": "integer", "minimum": 0}}


def openapi_route() -> Route:
    """To be mounted behind the key check."""

    async def document(request: Request) -> Response:
        return Response(_spelled(), media_type="application/json")

    return Route("/openapi.json", document, methods=["GET"])


def openapi_document() -> dict[str, Any]:
    """The document, made from the table of operations and the records of `art.wire`."""
    models = {
        shape: shape.__name__
        for operation in OPERATIONS.values()
        for shape in (operation.body, operation.reply)
        if isinstance(shape, type)
    }
    _, defined = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation)
    for path, methods in paths.items():
        if path.startswith("/v1/"):
            methods["servers"] = [{"url": "/"}, _server_of_rollout()]
    return {
        "openapi": "3.1.0",
        "info": {"title": "ART", "version": version("agent-reinforcement-trainer")},
        "paths": paths,
        "security": [{"bearer": []}, {"x-api-key": []}],
        "components": {
            "schemas": {**defined["$defs"], "Error": OPENAI_ERROR, "AnthropicError": ANTHROPIC_ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


@lru_cache(maxsize=1)
def _spelled() -> bytes:
    return orjson.dumps(openapi_document())


def _operation(method: str, path: str, operation: Operation) -> dict[str, Any]:
    written: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_"),
        "responses": {"200": _reply(operation), **_refusals(path, operation)},
    }
    parameters = _parameters(path, operation)
    if parameters:
        written["parameters"] = parameters
    if operation.body is not None:
        content = {"application/json": {"schema": _schema(operation.body)}}
        written["requestBody"] = {"required": True, "content": content}
    if operation.open:
        written["security"] = [{}]
    return written


def _reply(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.reply is not None:
        content["application/json"] = {"schema": _schema(operation.reply)}
    elif operation.streams is None:
        content["*/*"] = {}
    if operation.streams is not None:
        content[operation.streams] = {}
    return {"description": operation.summary, "content": content}


def _refusals(path: str, operation: Operation) -> dict[str, Any]:
    if operation.open:
        return {}
    name = "AnthropicError" if path.startswith("/v1/messages") else "Error"
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=name)}}}
    return {status: {"description": told, "content": content} for status, told in _ERRORS.items()}


def _parameters(path: str, operation: Operation) -> list[dict[str, Any]]:
    named = [
        {"name": name, "in": "path", "required": True, "schema": _PARAMETERS.get(name, {"type": "string"})}
        for name in re.findall(r"{(\w+)}", path)
    ]
    asked = [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query]
    return [*named, *asked, *([_ROLLOUT] if operation.streams == "text/event-stream" else [])]


def _schema(shape: Shape) -> Schema:
    if isinstance(shape, type) and issubclass(shape, Strict):
        return {"$ref": _REFERENCE.format(model=shape.__name__)}
    assert isinstance(shape, dict)
    return shape


def _server_of_rollout() -> dict[str, Any]:
    variable = {"default": "mine", "description": "The rollout that completions belong to"}
    return {"url": "/r/{rollout}", "variables": {"rollout": variable}}
