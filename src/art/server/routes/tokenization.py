"""POST /tokenize and /detokenize, GET /tokenizer_info and /version, in vLLM's shapes, for evaluators.

What a text or a conversation is as ids, by the tokenizer and the chat format of a served name.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from art.server.bodies import Beside, aside, decode_json
from art.server.dialects.chat_request import read_chat_request
from art.server.dialects.length import check_length, check_request
from art.server.dialects.refusal import refuse
from art.server.http import read_bytes
from art.server.ledger.stitching import Stitcher
from art.server.models.catalog import Catalog
from art.server.models.served import Target
from art.server.routes.endpoint import named
from art.server.settings import LimitSettings
from art.server.tenants.tenancy import Tenant, tenant_in

_FLAGS = {
    "add_generation_prompt": True,
    "return_token_strs": False,
    "add_special_tokens": False,
    "continue_final_message": False,
}
_OF_CHAT = ("messages", "tools", "chat_template_kwargs")
TOKENIZE_FIELDS = ("model", "prompt", *_OF_CHAT, *_FLAGS)
DETOKENIZE_FIELDS = ("model", "tokens")
_CLASS = "PreTrainedTokenizerFast"
"""What reads every tokenizer here, whatever class its folder names."""
_LARGEST_ID = 2**31 - 1
_LEAST_BOUND = 1 << 17
"""Ids that /detokenize takes at least: beyond the context, and this, they would hold the interpreter long."""
TOKENIZATION = frozenset({"/tokenize", "/detokenize"})
"""Routes that count as requests in flight of their tenant."""


def tokenization_routes(
    catalog: Catalog, stitcher: Stitcher, limits: LimitSettings, version: str
) -> list[BaseRoute]:
    """To be mounted behind the key check, which says who asks."""
    beside = Beside()

    async def body_of(request: Request, known: tuple[str, ...]) -> dict[str, Any]:
        raw = await read_bytes(request.scope, request.receive, limit=limits.max_body_bytes)
        body = await beside.run(len(raw), tenant_in(request.scope), decode_json, raw)
        return _checked(body, known)

    async def tokenize(request: Request) -> Response:
        body = await body_of(request, TOKENIZE_FIELDS)
        flags = {name: _flag(body, name) for name in _FLAGS}
        target = await _target(catalog, body.get("model"), tenant_in(request.scope))
        ids = await _ids(target, body, tenant_in(request.scope), stitcher, flags["add_generation_prompt"])
        strings = await aside(len(ids), _spelled, target, ids) if flags["return_token_strs"] else None
        return JSONResponse(
            {"count": len(ids), "max_model_len": target.max_context, "tokens": ids, "token_strs": strings}
        )

    async def detokenize(request: Request) -> Response:
        body = await body_of(request, DETOKENIZE_FIELDS)
        target = await _target(catalog, body.get("model"), tenant_in(request.scope))
        ids = await asyncio.to_thread(_tokens, body.get("tokens"), max(target.max_context, _LEAST_BOUND))
        return JSONResponse({"prompt": await aside(len(ids), target.renderer.decode, ids)})

    async def tokenizer_info(request: Request) -> Response:
        target = await _target(catalog, request.query_params.get("model"), tenant_in(request.scope))
        own = {"tokenizer_class": _CLASS, "model_max_length": target.max_context}
        return JSONResponse({**target.renderer.tokenizer_settings(), **own})

    async def tell_version(request: Request) -> Response:
        return JSONResponse({"version": version})

    return [
        Route("/tokenize", named(tokenize), methods=["POST"]),
        Route("/detokenize", named(detokenize), methods=["POST"]),
        Route("/tokenizer_info", named(tokenizer_info), methods=["GET"]),
        Route("/version", tell_version, methods=["GET"]),
    ]


def _checked(body: Any, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(body, dict):
        refuse("the body must be a JSON object", "", "invalid_json")
    given = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in known:
            refuse(
                f"{name[:200]!r} is not supported; supported: {', '.join(known)}",
                name,
                "unsupported_parameter",
            )
    return given


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, _FLAGS[name])
    if not isinstance(value, bool):
        refuse(f"{name} must be true or false", name)
    if name == "continue_final_message" and value:
        refuse("continue_final_message = true is not supported: a reply begins a message", name)
    return value


async def _target(catalog: Catalog, name: Any, tenant: Tenant) -> Target:
    """What a name means; without one the only base model that is served. Raises: RequestError."""
    if name is None:
        bases = [row.id for row in catalog.served(tenant) if row.project is None]
        if len(bases) != 1:
            refuse(
                "'model' is missing: several base models are served, or none", "model", "missing_parameter"
            )
        name = bases[0]
    if not isinstance(name, str) or not name:
        refuse("model must be a name", "model")
    return (await catalog.resolve(name, tenant)).confined_for(tenant)


async def _ids(
    target: Target, body: dict[str, Any], tenant: Tenant, stitcher: Stitcher, generate: bool
) -> list[int]:
    if ("prompt" in body) == ("messages" in body):
        refuse("give either prompt or messages", "prompt", "missing_parameter")
    renderer = target.renderer
    if "prompt" in body:
        prompt = body["prompt"]
        if not isinstance(prompt, str):
            refuse("prompt must be a text", "prompt")
        for name in (*_OF_CHAT, "add_generation_prompt"):
            if name in body:
                refuse(f"{name} goes with messages, not with a prompt", name)
        check_length([prompt], target, param="prompt")
        return await aside(len(prompt), renderer.encode, prompt)
    asked = {name: body[name] for name in _OF_CHAT if name in body}
    request = await asyncio.to_thread(read_chat_request, {**asked, "model": target.name}, max_n=1)
    check_request(request, target)
    if request.template_arguments:
        renderer = renderer.told(request.template_arguments)
    return await stitcher.render(
        renderer, request.messages, request.tools, size=request.size, tenant=tenant, generate=generate
    )


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
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= _LARGEST_ID:
            refuse(f"tokens has {one!r:.100}, which is no token id", "tokens")
    return value


def _spelled(target: Target, ids: list[int]) -> list[str]:
    return [target.renderer.token_bytes(token_id).decode("utf-8", "replace") for token_id in ids]
