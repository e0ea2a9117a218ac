"""The routes of models and training jobs (`art.wire.models`, `art.wire.jobs`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from art.errors import ARTError, CheckpointError, RequestError
from art.server.control import Control
from art.server.http import error_body, status_of
from art.wire.jobs import TrainJobRequest
from art.wire.models import AdoptRequest, DeleteCheckpointsRequest, ForkRequest, RegisterRequest
from art.wire.strict import Strict

Body = TypeVar("Body", bound=Strict)
Endpoint = Callable[[Request], Awaitable[Response]]

_LARGEST_BODY = 64 * 1024 * 1024


def control_routes(control: Control) -> list[BaseRoute]:
    """To be mounted behind the server's bearer key."""

    async def register(request: Request) -> Response:
        return _json(await control.register(await _body(request, RegisterRequest)))

    async def list_models(request: Request) -> Response:
        models = [control.describe(model).model_dump() for model in control.models.all()]
        return JSONResponse({"models": models})

    async def get_model(request: Request) -> Response:
        return _json(control.describe(control.models.get(*_model(request))))

    async def delete_checkpoints(request: Request) -> Response:
        asked = await _body(request, DeleteCheckpointsRequest)
        return _json(await control.delete_checkpoints(*_model(request), asked.keep_steps))

    async def fork(request: Request) -> Response:
        return _json(await control.arrivals.fork(*_model(request), await _body(request, ForkRequest)))

    async def adopt(request: Request) -> Response:
        return _json(await control.arrivals.adopt(*_model(request), await _body(request, AdoptRequest)))

    async def train(request: Request) -> Response:
        return _json(await control.jobs.submit(*_model(request), await _body(request, TrainJobRequest)))

    async def job(request: Request) -> Response:
        return _json(await control.jobs.info(request.path_params["job_id"]))

    async def events(request: Request) -> Response:
        job_id, after = request.path_params["job_id"], _after(request)
        await control.jobs.info(job_id)
        return StreamingResponse(control.jobs.events(job_id, after), media_type="application/x-ndjson")

    model = "/art/models/{project}/{name}"
    return [
        Route("/art/models", _named(register), methods=["POST"]),
        Route("/art/models", _named(list_models), methods=["GET"]),
        Route(model, _named(get_model), methods=["GET"]),
        Route(f"{model}/delete_checkpoints", _named(delete_checkpoints), methods=["POST"]),
        Route(f"{model}/fork", _named(fork), methods=["POST"]),
        Route(f"{model}/adopt", _named(adopt), methods=["POST"]),
        Route(f"{model}/train", _named(train), methods=["POST"]),
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
            return JSONResponse(error_body(error), status_code=status, headers=extra)

    return answer


async def _body(request: Request, kind: type[Body]) -> Body:
    """The body as a record. Raises RequestError that names what is wrong with it (400, 413)."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > _LARGEST_BODY:
            raise RequestError(
                f"the body is larger than {_LARGEST_BODY} bytes", status=413, code="body_too_large"
            )
        chunks.append(chunk)
    try:
        return kind.model_validate_json(b"".join(chunks))
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


def _model(request: Request) -> tuple[str, str]:
    return request.path_params["project"], request.path_params["name"]


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


def _json(record: Strict) -> Response:
    return Response(record.model_dump_json(), media_type="application/json")
