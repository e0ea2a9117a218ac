"""GET /openapi.json: the whole server as an OpenAPI 3.1 document, made from the table of its operations.

`OPERATIONS` says of every route what it takes and what it answers; extensions of the kind `dialect` say it of
theirs (`operations`). A test holds both to the routes that exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any, get_args

import orjson
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from art.extensions import DIALECT, load_extensions
from art.server.chat.chat_request import CHAT
from art.server.chat.request_fields import RequestSchema
from art.server.dialects.completions_request import COMPLETIONS, GENERATE
from art.server.dialects.dialect import LONGEST_ROLLOUT_ID
from art.server.routes import openapi_schemas as replies
from art.server.routes.gateway_routes import DETOKENIZE, TOKENIZE
from art.server.routes.openapi_schemas import OPENAI_ERROR
from art.wire.gradients import MadeStep, MakeStepRequest, Released, ServedStep, ServeStepRequest
from art.wire.jobs import ExtensionJobRequest, JobInfo, JobList, JobState, SftJobRequest, TrainJobRequest
from art.wire.models import (
    RESUME,
    UI_LINK_ROUTE,
    AdoptReply,
    AdoptRequest,
    DeleteCheckpointsReply,
    DeleteCheckpointsRequest,
    DeleteModelReply,
    DrainNodeReply,
    DrainNodeRequest,
    ForkReply,
    ForkRequest,
    LoadBaseReply,
    LoadBaseRequest,
    Manifest,
    ModelInfo,
    ModelList,
    PagesLink,
    RegisterRequest,
    UnloadStepsReply,
    UnloadStepsRequest,
)
from art.wire.records import Strict
from art.wire.request_values import Schema
from art.wire.rollouts import (
    ROLLOUT_HEADER,
    OpenRolloutRequest,
    RolloutExchanges,
    RolloutForgotten,
    RolloutScope,
)
from art.wire.samples import RolloutInfo, SampleInfo

Shape = Schema | RequestSchema | type[Strict]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one route."""

    summary: str
    reply: Shape | None
    """None: bytes of a file."""
    body: Shape | None = None
    streams: str | None = None
    """Media type of the reply where it comes in pieces, or is no JSON."""
    query: tuple[tuple[str, Schema], ...] = ()
    open: bool = False
    """No key is needed."""
    error: tuple[str, Schema] = ("Error", OPENAI_ERROR)
    """The name and the schema of what it refuses with."""


EVENT_STREAM = "text/event-stream"
_MODEL = "/art/models/{project}/{name}"
_NUMBER: Schema = {"type": "integer", "minimum": 0}

DIALECTS: dict[str, Operation] = {
    "/v1/chat/completions": Operation(
        summary="OpenAI's chat completions", body=CHAT, reply=replies.CHAT_COMPLETION, streams=EVENT_STREAM
    ),
    "/v1/completions": Operation(
        summary="OpenAI's completions of raw prompts",
        body=COMPLETIONS,
        reply=replies.COMPLETION,
        streams=EVENT_STREAM,
    ),
    "/inference/v1/generate": Operation(
        summary="vLLM's completions of ids by ids",
        body=GENERATE,
        reply=replies.TOKEN_COMPLETION,
        streams=EVENT_STREAM,
    ),
}

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/"): Operation(
        summary="What this address is, for people", reply=None, streams="text/plain", open=True
    ),
    ("GET", "/health"): Operation(summary="Whether the server lives", reply=replies.HEALTH, open=True),
    ("GET", "/openapi.json"): Operation(summary="This document", reply=replies.DOCUMENT),
    **{("POST", path): operation for path, operation in DIALECTS.items()},
    ("POST", "/tokenize"): Operation(
        summary="The ids of a text or a conversation", body=TOKENIZE, reply=replies.TOKENS
    ),
    ("POST", "/detokenize"): Operation(summary="The text of ids", body=DETOKENIZE, reply=replies.DETOKENIZED),
    ("GET", "/tokenizer_info"): Operation(
        summary="The special tokens and the chat template of a served name",
        reply=replies.TOKENIZER,
        query=(("model", {"type": "string", "minLength": 1}),),
    ),
    ("GET", "/metrics"): Operation(
        summary="What the server counts, for Prometheus", reply=None, streams="text/plain"
    ),
    ("GET", "/version"): Operation(summary="The server's version", reply=replies.VERSION),
    ("GET", "/v1/models"): Operation(summary="What is served", reply=replies.MODELS),
    ("GET", "/v1/models/{model}"): Operation(summary="One served name", reply=replies.MODEL),
    ("GET", "/v1/samples/{sample_id}"): Operation(summary="One completion as sampled", reply=SampleInfo),
    ("GET", "/v1/rollouts/{rollout_id}"): Operation(summary="The samples of a rollout", reply=RolloutInfo),
    ("POST", "/art/rollouts"): Operation(
        summary="Open a scoped rollout", body=OpenRolloutRequest, reply=RolloutScope
    ),
    ("GET", "/art/rollouts/{rollout_id}"): Operation(
        summary="What was said in a scoped rollout", reply=RolloutExchanges
    ),
    ("DELETE", "/art/rollouts/{rollout_id}"): Operation(
        summary="Forget a scoped rollout", reply=RolloutForgotten
    ),
    ("POST", "/art/rollouts/{rollout_id}/close"): Operation(
        summary="Close a scoped rollout", reply=RolloutExchanges
    ),
    ("POST", "/art/models"): Operation(
        summary="Register a model",
        body=RegisterRequest,
        reply=ModelInfo,
        query=((RESUME, {"enum": ["true", "false"]}),),
    ),
    ("GET", "/art/models"): Operation(summary="The registered models", reply=ModelList),
    ("GET", _MODEL): Operation(summary="One model", reply=ModelInfo),
    ("DELETE", _MODEL): Operation(summary="Delete a model", reply=DeleteModelReply),
    ("POST", f"{_MODEL}/train"): Operation(summary="Train a step", body=TrainJobRequest, reply=JobInfo),
    ("POST", f"{_MODEL}/train_sft"): Operation(
        summary="Train on examples", body=SftJobRequest, reply=JobInfo
    ),
    ("POST", f"{_MODEL}/train_extension"): Operation(
        summary="Train on conversations as an extension does", body=ExtensionJobRequest, reply=JobInfo
    ),
    ("POST", "/art/base_models"): Operation(
        summary="Serve a base model", body=LoadBaseRequest, reply=LoadBaseReply
    ),
    ("POST", f"{_MODEL}/gradients"): Operation(
        summary="Add the gradient of a batch, both in safetensors", reply=None
    ),
    ("POST", f"{_MODEL}/step"): Operation(
        summary="Move the weights by the gradients that were added", body=MakeStepRequest, reply=MadeStep
    ),
    ("POST", f"{_MODEL}/release"): Operation(
        summary="Have the trainer forget a model that is not trained now", reply=Released
    ),
    ("POST", f"{_MODEL}/serve"): Operation(
        summary="Serve a step that was made so", body=ServeStepRequest, reply=ServedStep
    ),
    ("POST", f"{_MODEL}/delete_checkpoints"): Operation(
        summary="Delete checkpoints", body=DeleteCheckpointsRequest, reply=DeleteCheckpointsReply
    ),
    ("POST", f"{_MODEL}/unload_steps"): Operation(
        summary="Have the engine forget steps", body=UnloadStepsRequest, reply=UnloadStepsReply
    ),
    ("POST", f"{_MODEL}/fork"): Operation(
        summary="Begin where another model stands", body=ForkRequest, reply=ForkReply
    ),
    ("POST", f"{_MODEL}/adopt"): Operation(
        summary="Take over steps from files", body=AdoptRequest, reply=AdoptReply
    ),
    ("GET", f"{_MODEL}/checkpoints/{{step}}/files"): Operation(summary="A step's files", reply=Manifest),
    ("GET", f"{_MODEL}/checkpoints/{{step}}/files/{{file}}"): Operation(
        summary="One file of a step", reply=None
    ),
    ("POST", "/art/cluster/drain"): Operation(
        summary="Move the workers of a node of the cluster elsewhere",
        body=DrainNodeRequest,
        reply=DrainNodeReply,
    ),
    ("POST", UI_LINK_ROUTE): Operation(
        summary="A link that opens the pages of the runs in one browser", reply=PagesLink
    ),
    ("GET", "/art/jobs"): Operation(
        summary="Training jobs, newest first",
        reply=JobList,
        query=(
            ("model", replies.TEXT),
            ("state", {"enum": [*get_args(JobState)]}),
            ("before", replies.TEXT),
            ("limit", _NUMBER),
        ),
    ),
    ("GET", "/art/jobs/{job_id}"): Operation(summary="A training job", reply=JobInfo),
    ("GET", "/art/jobs/{job_id}/events"): Operation(
        summary="A job's events as they come, each a JobEvent on a line",
        reply=None,
        streams="application/x-ndjson",
        query=(("after", _NUMBER),),
    ),
}


@lru_cache(maxsize=1)
def operations() -> dict[tuple[str, str], Operation]:
    """Returns all operations: the server's own, and those of its extensions."""
    given = [extension.operations for extension in load_extensions(DIALECT).values()]
    return OPERATIONS | {at: one for those in given for at, one in those.items()}


_REFERENCE = "#/components/schemas/{model}"
_ERRORS = {
    "400": "The request was refused: the message says what was wrong, `param` where",
    "401": "No key, or a wrong one",
    "403": "The key does not open this",
    "404": "No such model, sample, job or route",
    "405": "Another method",
    "408": "The body did not come in time",
    "409": "Something else is in the way",
    "410": "The rollout is closed or has expired",
    "413": "The body is too large",
    "429": "The queue is full; `Retry-After` says when to come back",
    "500": "Internal error; the traceback is in the server's log",
    "503": "A worker is being restarted: the same request will work again",
}
_ROLLOUT = {
    "name": ROLLOUT_HEADER,
    "in": "header",
    "required": False,
    "description": "The rollout that the completion belongs to",
    "schema": {"type": "string", "pattern": f"^[ -~]{{1,{LONGEST_ROLLOUT_ID}}}$"},
}
_PARAMETERS: dict[str, Schema] = {"step": {"type": "integer", "minimum": 0}}


def openapi_route() -> Route:
    """Returns the OpenAPI route, to be mounted behind the key check."""

    async def document(request: Request) -> Response:
        return Response(_spelled(), media_type="application/json")

    return Route("/openapi.json", document, methods=["GET"])


def openapi_document() -> dict[str, Any]:
    """The document, made from the table of operations and the records of `art.wire`."""
    models = {
        shape: shape.__name__
        for operation in operations().values()
        for shape in (operation.body, operation.reply)
        if isinstance(shape, type)
    }
    _, defined = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in operations().items():
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
            "schemas": {**defined["$defs"], **dict(one.error for one in operations().values())},
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
        "responses": {"200": _reply(operation), **_refusals(operation)},
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


def _refusals(operation: Operation) -> dict[str, Any]:
    if operation.open:
        return {}
    name, _ = operation.error
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=name)}}}
    return {status: {"description": text, "content": content} for status, text in _ERRORS.items()}


def _parameters(path: str, operation: Operation) -> list[dict[str, Any]]:
    named = [
        {"name": name, "in": "path", "required": True, "schema": _PARAMETERS.get(name, {"type": "string"})}
        for name in re.findall(r"{(\w+)}", path)
    ]
    asked = [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query]
    return [*named, *asked, *([_ROLLOUT] if operation.streams == EVENT_STREAM else [])]


def _schema(shape: Shape) -> Schema:
    if isinstance(shape, type) and issubclass(shape, Strict):
        return {"$ref": _REFERENCE.format(model=shape.__name__)}
    if isinstance(shape, RequestSchema):
        return shape.schema
    assert isinstance(shape, dict)
    return shape


def _server_of_rollout() -> dict[str, Any]:
    variable = {"default": "mine", "description": "The rollout that completions belong to"}
    return {"url": "/r/{rollout}", "variables": {"rollout": variable}}
