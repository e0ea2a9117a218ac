"""The gateway's routes beside the dialects: served models, samples, scoped rollouts, and what a text or a
conversation is as ids.

POST /tokenize and /detokenize, GET /tokenizer_info and /version have vLLM's shapes, for evaluators: by the
tokenizer and the chat format of a served name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from art.server.catalog import Catalog, ServedName, Target
from art.server.chat.chat_request import CHAT, read_chat_request
from art.server.chat.prompt_and_reply import check_messages_fit, check_texts_fit, name_images
from art.server.chat.request_fields import RequestField, RequestSchema
from art.server.dialects.dialect import rollout_of
from art.server.http import TenantThreads, decode_json, read_bytes, run_in_thread_if_large
from art.server.ledger.face import SampleLedger
from art.server.ledger.schema import SampleRecord
from art.server.ledger.stitching import Stitcher
from art.server.rollouts import ScopedRollout, ScopedRollouts
from art.server.routes.endpoint import read_body, record_reply
from art.server.settings import LimitSettings
from art.server.tenancy import Tenant, external_name, tenant_in
from art.wire.quoting import quote_value
from art.wire.request_values import FLAG, LARGEST_ID, NAME, TEXT, ByHand, Values, refuse
from art.wire.rollouts import OpenRolloutRequest, RolloutForgotten
from art.wire.samples import RolloutInfo, SampleInfo


class Lookups:
    """The queries of the catalog and the ledger."""

    def __init__(self, catalog: Catalog, ledger: SampleLedger, rollouts: ScopedRollouts) -> None:
        self._catalog = catalog
        self._rollouts = rollouts
        self._ledger = ledger
        self.routes = [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/v1/samples/{sample_id}", self.sample, methods=["GET"]),
            Route("/v1/rollouts/{rollout_id:path}", self.rollout, methods=["GET"]),
        ]

    async def models(self, request: Request) -> Response:
        """Every served name; in a scoped rollout those that may be asked for there."""
        tenant, scoped = tenant_in(request.scope), self._scoped(request)
        rows = self._catalog.served(tenant)
        if scoped is not None:
            row = self._catalog.describe(scoped.model, tenant)
            bases = [base for base in rows if base.id == row.base_model and scoped.record.allow_base]
            rows = [*(replace(row, id=name) for name in scoped.listed_names()), *bases]
        return JSONResponse({"object": "list", "data": [_model(row) for row in rows]})

    async def model(self, request: Request) -> Response:
        """One served name. Raises: NotFoundError listing the others."""
        name, tenant = request.path_params["model"], tenant_in(request.scope)
        scoped = self._scoped(request)
        if scoped is None:
            return JSONResponse(_model(self._catalog.describe(name, tenant)))
        meant = scoped.name_meant(name, is_base=self._catalog.has_base(name, tenant))
        return JSONResponse(_model(replace(self._catalog.describe(meant, tenant), id=name)))

    async def sample(self, request: Request) -> Response:
        """One sample: ids, logprobs, where it comes from. Raises: NotFoundError."""
        tenant = tenant_in(request.scope)
        (record,) = await self._ledger.samples([request.path_params["sample_id"]], tenant=tenant)
        return _json(sample_info(record, tenant))

    async def rollout(self, request: Request) -> Response:
        """The samples of a rollout; none for one that was never seen."""
        rollout_id, tenant = request.path_params["rollout_id"], tenant_in(request.scope)
        records = await self._ledger.rollout(rollout_id, tenant=tenant)
        forks = Counter(record.fork_reason for record in records if record.fork_reason is not None)
        samples = [sample_info(record, tenant) for record in records]
        return _json(RolloutInfo(rollout_id=rollout_id, samples=samples, forks=dict(forks)))

    def _scoped(self, request: Request) -> ScopedRollout | None:
        rollout_id = rollout_of(request.scope)
        if rollout_id is None:
            return None
        return self._rollouts.open_one(rollout_id, tenant_in(request.scope))


def sample_info(record: SampleRecord, tenant: Tenant) -> SampleInfo:
    """A record as it is told to clients."""
    return SampleInfo(
        sample_id=record.sample_id,
        rollout_id=record.rollout_id,
        project=external_name(tenant, record.project) if record.project else None,
        model=record.model,
        step=record.step,
        parent_id=record.parent_id,
        fork_reason=record.fork_reason,
        prompt_ids=record.prompt_ids.tolist(),
        completion_ids=record.completion_ids.tolist(),
        completion_logprobs=record.completion_logprobs.tolist(),
        sampling=record.sampling,
        finish_reason=record.finish_reason,
        created_at=record.created_at,
    )


def _json(info: SampleInfo | RolloutInfo) -> Response:
    return Response(info.model_dump_json(), media_type="application/json")


def _model(row: ServedName) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "model",
        "created": 0,
        "owned_by": row.project or "art",
        "base_model": row.base_model,
        "step": row.step,
        "max_model_len": row.max_context,
    }


_ONE = "/art/rollouts/{rollout_id}"


def rollout_routes(rollouts: ScopedRollouts) -> list[BaseRoute]:
    """Returns the rollout routes, to be mounted behind the key check, which identifies the caller."""

    async def open_rollout(request: Request) -> Response:
        asked = await read_body(request, OpenRolloutRequest)
        return record_reply(request, await rollouts.open(asked, tenant_in(request.scope)))

    async def exchanges(request: Request) -> Response:
        return record_reply(request, await rollouts.exchanges(_id(request), tenant_in(request.scope)))

    async def close(request: Request) -> Response:
        return record_reply(request, await rollouts.close(_id(request), tenant_in(request.scope)))

    async def forget(request: Request) -> Response:
        await rollouts.forget(_id(request), tenant_in(request.scope))
        return record_reply(request, RolloutForgotten(rollout_id=_id(request)))

    return [
        Route("/art/rollouts", open_rollout, methods=["POST"]),
        Route(_ONE, exchanges, methods=["GET"]),
        Route(_ONE, forget, methods=["DELETE"]),
        Route(f"{_ONE}/close", close, methods=["POST"]),
    ]


def _id(request: Request) -> str:
    rollout_id: str = request.path_params["rollout_id"]
    return rollout_id


_FLAGS = {"add_generation_prompt": True, "return_token_strs": False, "add_special_tokens": False}
_OF_CHAT = ("messages", "tools", "chat_template_kwargs")
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": LARGEST_ID}}
_NO_GOING_ON = Values(bool, "true or false", schema={"enum": [False, None]})
TOKENIZE = RequestSchema(
    {
        "model": RequestField(NAME),
        "prompt": RequestField(TEXT),
        **{name: CHAT.fields[name] for name in _OF_CHAT},
        **dict.fromkeys(_FLAGS, RequestField(FLAG)),
        "continue_final_message": RequestField(_NO_GOING_ON),
    },
    idle={},
    quoted=0,
)
DETOKENIZE = RequestSchema(
    {"model": RequestField(NAME), "tokens": RequestField(ByHand(_TOKENS))},
    required=("tokens",),
    idle={},
    quoted=0,
)
_CLASS = "PreTrainedTokenizerFast"
"""What reads every tokenizer here, whatever class its folder names."""
_LEAST_BOUND = 1 << 17
"""Ids that /detokenize takes at least: beyond the context, and this, they would hold the interpreter long."""
TOKENIZATION = frozenset({"/tokenize", "/detokenize"})
"""Routes that count as requests in flight of their tenant."""


def tokenization_routes(
    catalog: Catalog, stitcher: Stitcher, limits: LimitSettings, version: str
) -> list[BaseRoute]:
    """Returns the tokenization routes, to be mounted behind the key check, which identifies the caller."""
    threads = TenantThreads()

    async def body_of(request: Request, schema: RequestSchema) -> dict[str, Any]:
        raw = await read_bytes(request.scope, request.receive, limit=limits.max_body_bytes)
        body = await threads.run(len(raw), tenant_in(request.scope), decode_json, raw)
        return _checked(body, schema)

    async def tokenize(request: Request) -> Response:
        body = await body_of(request, TOKENIZE)
        flags = {name: TOKENIZE.read_field(name, body.get(name, idle)) for name, idle in _FLAGS.items()}
        if TOKENIZE.read_field("continue_final_message", body.get("continue_final_message")):
            refuse(
                "continue_final_message = true is not supported: a reply begins a message",
                "continue_final_message",
            )
        target = await _target(catalog, body.get("model"), tenant_in(request.scope))
        ids = await _ids(target, body, tenant_in(request.scope), stitcher, flags["add_generation_prompt"])
        strings = (
            await run_in_thread_if_large(len(ids), _spelled, target, ids)
            if flags["return_token_strs"]
            else None
        )
        return JSONResponse(
            {"count": len(ids), "max_model_len": target.max_context, "tokens": ids, "token_strs": strings}
        )

    async def detokenize(request: Request) -> Response:
        body = await body_of(request, DETOKENIZE)
        target = await _target(catalog, body.get("model"), tenant_in(request.scope))
        ids = await asyncio.to_thread(_tokens, body.get("tokens"), max(target.max_context, _LEAST_BOUND))
        return JSONResponse({"prompt": await run_in_thread_if_large(len(ids), target.renderer.decode, ids)})

    async def tokenizer_info(request: Request) -> Response:
        target = await _target(catalog, request.query_params.get("model"), tenant_in(request.scope))
        own = {"tokenizer_class": _CLASS, "model_max_length": target.max_context}
        return JSONResponse({**target.renderer.tokenizer_settings(), **own})

    async def tell_version(request: Request) -> Response:
        return JSONResponse({"version": version})

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/tokenizer_info", tokenizer_info, methods=["GET"]),
        Route("/version", tell_version, methods=["GET"]),
    ]


def _checked(body: Any, schema: RequestSchema) -> dict[str, Any]:
    if not isinstance(body, dict):
        refuse("the body must be a JSON object", "", "invalid_json")
    given = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in schema.fields:
            refuse(
                f"{name[:200]!r} is not supported; supported: {', '.join(schema.fields)}",
                name,
                "unsupported_parameter",
            )
    return given


async def _target(catalog: Catalog, name: Any, tenant: Tenant) -> Target:
    """Returns the target of a name; without one the only base model that is served. Raises: RequestError."""
    if name is None:
        bases = [row.id for row in catalog.served(tenant) if row.project is None]
        if len(bases) != 1:
            refuse(
                "'model' is missing: several base models are served, or none", "model", "missing_parameter"
            )
        name = bases[0]
    named = TOKENIZE.read_field("model", name)
    return (await catalog.resolve(named, tenant)).confined_for(tenant)


async def _ids(
    target: Target, body: dict[str, Any], tenant: Tenant, stitcher: Stitcher, generate: bool
) -> list[int]:
    if ("prompt" in body) == ("messages" in body):
        refuse("give either prompt or messages", "prompt", "missing_parameter")
    renderer = target.renderer
    if "prompt" in body:
        prompt = TOKENIZE.read_field("prompt", body["prompt"])
        for name in (*_OF_CHAT, "add_generation_prompt"):
            if name in body:
                refuse(f"{name} goes with messages, not with a prompt", name)
        check_texts_fit([prompt], target, param="prompt")
        return await run_in_thread_if_large(len(prompt), renderer.encode, prompt)
    asked = {name: body[name] for name in _OF_CHAT if name in body}
    request = await asyncio.to_thread(read_chat_request, {**asked, "model": target.name}, max_n=1)
    check_messages_fit(request, target)
    await name_images(request, renderer)
    if request.chat_template_kwargs:
        renderer = renderer.with_arguments(request.chat_template_kwargs)
    ids = await stitcher.render(
        renderer, request.messages, request.tools, size=request.size, tenant=tenant, generate=generate
    )
    return ids if renderer.images is None else renderer.images.shown(ids)


def _tokens(value: Any, most: int) -> list[int]:
    if isinstance(value, list) and len(value) > most:
        refuse(
            f"tokens has {len(value)} ids; at most {most} are taken at a time",
            "tokens",
            "context_length_exceeded",
        )
    if not isinstance(value, list):
        refuse(
            "tokens must be a list of token ids",
            "tokens",
            "missing_parameter" if value is None else "invalid_value",
        )
    for one in value:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= LARGEST_ID:
            refuse(f"tokens has {quote_value(one, 100)}, which is no token id", "tokens")
    return value


def _spelled(target: Target, ids: list[int]) -> list[str]:
    return [target.renderer.token_bytes(token_id).decode("utf-8", "replace") for token_id in ids]
