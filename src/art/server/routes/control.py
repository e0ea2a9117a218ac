"""The routes of models and training jobs (`art.wire.models`, `art.wire.jobs`, `art.wire.sft`)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from art.errors import RequestError
from art.server.control import Control
from art.server.routes.checkpoints import checkpoint_routes
from art.server.routes.endpoint import MODEL, job_asked, model_asked, named, read_body, reply
from art.server.tenants.edge import leaving
from art.server.tenants.tenancy import Tenant, outside, tenant_in, tenant_of
from art.wire.jobs import JobEvent, TrainJobRequest
from art.wire.models import DeleteModelReply, RegisterRequest
from art.wire.sft import LARGEST_SFT_BODY, SftJobRequest

_SMALLER_SFT = "; train in several calls, such as one for each chunk of create_sft_dataset_iterator"


def control_routes(control: Control) -> list[BaseRoute]:
    """To be mounted behind the key check, which says who asks."""

    async def register(request: Request) -> Response:
        return reply(request, await control.register(await read_body(request, RegisterRequest)))

    async def list_models(request: Request) -> Response:
        tenant = tenant_in(request.scope)
        known = [m for m in control.models.all() if tenant in (None, tenant_of(m.project))]
        models = [leaving(tenant, control.describe(model)).model_dump() for model in known]
        return JSONResponse({"models": models})

    async def get_model(request: Request) -> Response:
        project, name = model_asked(request)
        info = control.describe(control.models.get(project, name))
        jobs = await control.jobs.unfinished(project, name)
        shown = [outside(tenant_in(request.scope), job_id) for job_id in jobs]
        return reply(request, info.model_copy(update={"unfinished_jobs": shown}))

    async def delete_model(request: Request) -> Response:
        await control.deletions.delete_model(*model_asked(request))
        project, name = request.path_params["project"], request.path_params["name"]
        return reply(request, DeleteModelReply(project=project, name=name))

    async def train(request: Request) -> Response:
        asked = await read_body(request, TrainJobRequest)
        return reply(request, await control.jobs.submit(*model_asked(request), asked))

    async def train_sft(request: Request) -> Response:
        asked = await read_body(request, SftJobRequest, largest=LARGEST_SFT_BODY, advice=_SMALLER_SFT)
        return reply(request, await control.jobs.submit(*model_asked(request), asked))

    async def job(request: Request) -> Response:
        return reply(request, await control.jobs.info(job_asked(request)))

    async def events(request: Request) -> Response:
        job_id, after = job_asked(request), _after(request)
        await control.jobs.info(job_id)
        lines = _event_lines(tenant_in(request.scope), control.jobs.events(job_id, after))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    return [
        Route("/art/models", named(register), methods=["POST"]),
        Route("/art/models", named(list_models), methods=["GET"]),
        Route(MODEL, named(get_model), methods=["GET"]),
        Route(MODEL, named(delete_model), methods=["DELETE"]),
        Route(f"{MODEL}/train", named(train), methods=["POST"]),
        Route(f"{MODEL}/train_sft", named(train_sft), methods=["POST"]),
        Route("/art/jobs/{job_id}", named(job), methods=["GET"]),
        Route("/art/jobs/{job_id}/events", named(events), methods=["GET"]),
        *checkpoint_routes(control),
    ]


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
