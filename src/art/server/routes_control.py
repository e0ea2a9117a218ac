"""The routes of models and training jobs (`art.wire.models`, `art.wire.jobs`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from art.errors import ARTError, CheckpointError, RequestError
from art.server.control import Control
from art.server.edge import arrived, leaving
from art.server.http import error_body, status_of
from art.server.tenancy import Tenant, inside, tenant_in, tenant_of
from art.wire.jobs import JobEvent, TrainJobRequest
from art.wire.models import AdoptRequest, DeleteCheckpointsRequest, ForkRequest, RegisterRequest
from art.wire.sft import LARGEST_SFT_BODY, SftJobRequest
from art.wire.strict import Strict

Body = TypeVar("Body", bound=Strict)
Endpoint = Callable[[Request], Awaitable[Response]]

_LARGEST_BODY = 64 * 1024 * 1024
_SMALLER_SFT = "; train in several calls, such as one for each chunk of create_sft_dataset_iterator"


def control_routes(control: Control) -> list[BaseRoute]:
    """To be mounted behind the key check, which says who asks.

    Names are those of the inside from `_model`, `_job` and `_body` on until `_json`.
    """

    async def register(request: Request) -> Response:
        return _json(request, await control.register(await _body(request, RegisterRequest)))

    async def list_models(request: Request) -> Response:
        tenant = tenant_in(request.scope)
        known = [m for m in control.models.all() if tenant in (None, tenant_of(m.project))]
        models = [leaving(tenant, control.describe(model)).model_dump() for model in known]
        return JSONResponse({"models": models})

    async def get_model(request: Request) -> Response:
        return _json(request, control.describe(control.models.get(*_model(request))))

    async def delete_checkpoints(request: Request) -> Response:
        asked = await _body(request, DeleteCheckpointsRequest)
        return _json(request, await control.delete_checkpoints(*_model(request), asked.keep_steps))

    async def fork(request: Request) -> Response:
        asked = await _body(request, ForkRequest)
        return _json(request, await control.arrivals.fork(*_model(request), asked))

    async def adopt(request: Request) -> Response:
        _operator_only(request)
        asked = await _body(request, AdoptRequest)
        return _json(request, await control.arrivals.adopt(*_model(request), asked))

    async def train(request: Request) -> Response:
        asked = await _body(request, TrainJobRequest)
        return _json(request, await control.jobs.submit(*_model(request), asked))

    async def train_sft(request: Request) -> Response:
        asked = await _body(request, SftJobRequest, largest=LARGEST_SFT_BODY, advice=_SMALLER_SFT)
        return _json(request, await control.jobs.submit(*_model(request), asked))

    async def job(request: Request) -> Response:
        return _json(request, await control.jobs.info(_job(request)))

    async def events(request: Request) -> Response:
        job_id, after = _job(request), _after(request)
        await control.jobs.info(job_id)
        lines = _event_lines(tenant_in(request.scope), control.jobs.events(job_id, after))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    model = "/art/models/{project}/{name}"
    return [
        Route("/art/models", _named(register), methods=["POST"]),
        Route("/art/models", _named(list_models), methods=["GET"]),
        Route(model, _named(get_model), methods=["GET"]),
        Route(f"{model}/delete_checkpoints", _named(delete_checkpoints), methods=["POST"]),
        Route(f"{model}/fork", _named(fork), methods=["POST"]),
        Route(f"{model}/adopt", _named(adopt), methods=["POST"]),
        Route(f"{model}/train", _named(train), methods=["POST"]),
        Route(f"{model}/train_sft", _named(train_sft), methods=["POST"]),
        Route("/art/jobs/{job_id}", _named(job), methods=["GET"]),
        Route("/art/jobs/{job_id}/events", _named(events), methods=["GET"]),
    ]


def _named(endpoint: Endpoint) -> Endpoint:
    """The endpoint, its errors answered in OpenAI's shape."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ARTError as problem:
            error = problem
            if isinstance(problem, CheckpointError):  # trying again is of no use: the message says what is
                error = RequestError(str(problem), status=409, code="checkpoint_unfit")
            status, headers = status_of(error)
            extra = {name.decode(): value.decode() for name, value in headers}
            body = error_body(error, tenant_in(request.scope))
            return JSONResponse(body, status_code=status, headers=extra)

    return answer


async def _body(
    request: Request, kind: type[Body], *, largest: int = _LARGEST_BODY, advice: str = ""
) -> Body:
    """The body as a record, in names of the inside. Raises RequestError that says what is wrong."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > largest:
            raise RequestError(
                f"the body is larger than {largest} bytes{advice}", status=413, code="body_too_large"
            )
        chunks.append(chunk)
    try:
        asked = kind.model_validate_json(b"".join(chunks))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        known = ", ".join(kind.model_fields)
        raise RequestError(
            f"{field or 'the body'}: {first['msg']}; fields of this request: {known}",
            status=400,
            code="invalid_request",
            param=field or None,
        ) from error
    return arrived(tenant_in(request.scope), asked)


def _model(request: Request) -> tuple[str, str]:
    """Project, as it is inside, and name."""
    return inside(tenant_in(request.scope), request.path_params["project"]), request.path_params["name"]


def _job(request: Request) -> str:
    return inside(tenant_in(request.scope), request.path_params["job_id"])


def _operator_only(request: Request) -> None:
    if tenant_in(request.scope) is not None:
        raise RequestError(
            f"{request.method} {request.url.path} needs the server's own key: it is about the server's files",
            status=403,
            code="operator_only",
        )


async def _event_lines(tenant: Tenant, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A job's events as who asked may read them."""
    async for line in lines:
        if tenant is None or not line.strip():
            yield line
        else:
            yield leaving(tenant, JobEvent.model_validate_json(line)).model_dump_json().encode() + b"\n"


def _after(request: Request) -> int:
    text = request.query_params.get("after", "0")
    if not (text.isascii() and text.isdigit()):
        raise RequestError(
            f"after={text!r} is no event number; use the last number you saw, or 0",
            status=400,
            code="invalid_request",
            param="after",
        )
    return int(text)


def _json(request: Request, record: Strict) -> Response:
    told = leaving(tenant_in(request.scope), record)
    return Response(told.model_dump_json(), media_type="application/json")
