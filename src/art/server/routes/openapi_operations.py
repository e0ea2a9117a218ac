"""Every route: what it takes and what it answers. A test holds this table to the routes that exist."""

from __future__ import annotations

from dataclasses import dataclass

from art.server.routes import openapi_replies as replies
from art.server.routes import openapi_requests as requests
from art.server.routes.openapi_requests import Schema
from art.wire.checkpoint import Manifest
from art.wire.jobs import JobInfo, TrainJobRequest
from art.wire.models import (
    AdoptReply,
    AdoptRequest,
    DeleteCheckpointsReply,
    DeleteCheckpointsRequest,
    DeleteModelReply,
    ForkReply,
    ForkRequest,
    ModelInfo,
    RegisterRequest,
    UnloadStepsReply,
    UnloadStepsRequest,
)
from art.wire.rollouts import OpenRolloutRequest, RolloutExchanges, RolloutForgotten, RolloutScope
from art.wire.samples import RolloutInfo, SampleInfo
from art.wire.sft import SftJobRequest
from art.wire.strict import Strict

Shape = Schema | type[Strict]


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


_SSE = "text/event-stream"
_LISTED_MODELS: Schema = {
    "type": "object",
    "properties": {"models": {"type": "array", "items": {"$ref": "#/components/schemas/ModelInfo"}}},
    "required": ["models"],
    "additionalProperties": False,
}
_MODEL = "/art/models/{project}/{name}"
_NUMBER: Schema = {"type": "integer", "minimum": 0}

DIALECTS: dict[str, Operation] = {
    "/v1/chat/completions": Operation(
        summary="OpenAI's chat completions", body=requests.CHAT, reply=replies.CHAT_COMPLETION, streams=_SSE
    ),
    "/v1/completions": Operation(
        summary="OpenAI's completions of raw prompts",
        body=requests.COMPLETIONS,
        reply=replies.COMPLETION,
        streams=_SSE,
    ),
    "/v1/responses": Operation(
        summary="OpenAI's Responses", body=requests.RESPONSES, reply=replies.RESPONSE, streams=_SSE
    ),
    "/v1/messages": Operation(
        summary="Anthropic's messages", body=requests.MESSAGES, reply=replies.MESSAGE, streams=_SSE
    ),
    "/v1/messages/count_tokens": Operation(
        summary="The tokens of a request to Anthropic's messages",
        body=requests.COUNT_TOKENS,
        reply=replies.TOKEN_COUNT,
    ),
}

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/health"): Operation(summary="Whether the server lives", reply=replies.HEALTH, open=True),
    ("GET", "/openapi.json"): Operation(summary="This document", reply=replies.DOCUMENT),
    **{("POST", path): operation for path, operation in DIALECTS.items()},
    ("GET", "/v1/responses/{response_id}"): Operation(summary="A stored response", reply=replies.RESPONSE),
    ("DELETE", "/v1/responses/{response_id}"): Operation(
        summary="Forget a stored response", reply=replies.RESPONSE_DELETED
    ),
    ("GET", "/v1/responses/{response_id}/input_items"): Operation(
        summary="What a stored response answered",
        reply=replies.INPUT_ITEMS,
        query=(
            ("after", {"type": "string"}),
            ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
            ("order", {"enum": ["asc", "desc"]}),
        ),
    ),
    ("POST", "/tokenize"): Operation(
        summary="The ids of a text or a conversation", body=requests.TOKENIZE, reply=replies.TOKENS
    ),
    ("POST", "/detokenize"): Operation(
        summary="The text of ids", body=requests.DETOKENIZE, reply=replies.DETOKENIZED
    ),
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
    ("POST", "/art/models"): Operation(summary="Register a model", body=RegisterRequest, reply=ModelInfo),
    ("GET", "/art/models"): Operation(summary="The registered models", reply=_LISTED_MODELS),
    ("GET", _MODEL): Operation(summary="One model", reply=ModelInfo),
    ("DELETE", _MODEL): Operation(summary="Delete a model", reply=DeleteModelReply),
    ("POST", f"{_MODEL}/train"): Operation(summary="Train a step", body=TrainJobRequest, reply=JobInfo),
    ("POST", f"{_MODEL}/train_sft"): Operation(
        summary="Train on examples", body=SftJobRequest, reply=JobInfo
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
    ("GET", "/art/jobs/{job_id}"): Operation(summary="A training job", reply=JobInfo),
    ("GET", "/art/jobs/{job_id}/events"): Operation(
        summary="A job's events as they come, each a JobEvent on a line",
        reply=None,
        streams="application/x-ndjson",
        query=(("after", _NUMBER),),
    ),
}
