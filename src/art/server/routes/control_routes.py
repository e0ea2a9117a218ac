"""The control routes: models, checkpoints and jobs (`art.wire.models`, `art.wire.jobs`, `art.wire.sft`)."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from art.errors import RequestError
from art.server.checkpoints.checkpoints import file_of, manifest_of
from art.server.control import Control
from art.server.http import read_bytes
from art.server.routes.endpoint import (
    LARGEST_BODY,
    MODEL_ROUTE,
    job_asked,
    model_asked,
    operator_only,
    read_body,
    record_reply,
    with_external_names,
)
from art.server.tenancy import Tenant, external_name, internal_name, tenant_in
from art.wire.gradients import MakeStepRequest, ServeStepRequest
from art.wire.jobs import (
    LARGEST_SFT_BODY,
    ExtensionJobRequest,
    JobEvent,
    JobList,
    JobListing,
    SftJobRequest,
    TrainJobRequest,
)
from art.wire.json_lines import one_line
from art.wire.models import (
    RESUME,
    AdoptRequest,
    DeleteCheckpointsRequest,
    DeleteModelReply,
    DrainNodeRequest,
    ForkRequest,
    LoadBaseRequest,
    ModelList,
    RegisterRequest,
    UnloadStepsRequest,
)
from art.wire.records import Strict, first_flaw

_SMALLER_BATCH = "; add the gradients of several smaller batches"
_SMALLER_SFT = "; train in several calls, such as one for each chunk of create_sft_dataset_iterator"


def checkpoint_routes(control: Control) -> list[BaseRoute]:
    """Returns the checkpoint routes, to be mounted behind the key check."""

    async def delete_checkpoints(request: Request) -> Response:
        asked = await read_body(request, DeleteCheckpointsRequest)
        return record_reply(
            request, await control.deletions.delete_checkpoints(*model_asked(request), asked.keep_steps)
        )

    async def unload_steps(request: Request) -> Response:
        asked = await read_body(request, UnloadStepsRequest)
        return record_reply(request, control.deletions.unload_steps(*model_asked(request), asked.keep_steps))

    async def files(request: Request) -> Response:
        checkpoints = control.models.checkpoints(control.models.get(*model_asked(request)))
        return record_reply(request, await to_thread(manifest_of, checkpoints, request.path_params["step"]))

    async def file(request: Request) -> Response:
        checkpoints = control.models.checkpoints(control.models.get(*model_asked(request)))
        asked = request.path_params["step"], request.path_params["file"]
        return FileResponse(await to_thread(file_of, checkpoints, *asked))

    async def fork(request: Request) -> Response:
        asked = await read_body(request, ForkRequest)
        return record_reply(request, await control.imports.fork(*model_asked(request), asked))

    async def adopt(request: Request) -> Response:
        operator_only(request)
        asked = await read_body(request, AdoptRequest)
        return record_reply(request, await control.imports.adopt(*model_asked(request), asked))

    files_of_step = f"{MODEL_ROUTE}/checkpoints/{{step:int}}/files"
    return [
        Route(f"{MODEL_ROUTE}/delete_checkpoints", delete_checkpoints, methods=["POST"]),
        Route(f"{MODEL_ROUTE}/unload_steps", unload_steps, methods=["POST"]),
        Route(files_of_step, files, methods=["GET"]),
        Route(f"{files_of_step}/{{file}}", file, methods=["GET"]),
        Route(f"{MODEL_ROUTE}/fork", fork, methods=["POST"]),
        Route(f"{MODEL_ROUTE}/adopt", adopt, methods=["POST"]),
    ]


def gradient_routes(control: Control) -> list[BaseRoute]:
    """Returns the routes of `art.wire.gradients`, to be mounted behind the key check."""

    async def add(request: Request) -> Response:
        body = await read_bytes(request.scope, request.receive, limit=LARGEST_BODY, advice=_SMALLER_BATCH)
        columns = await control.gradients.add(*model_asked(request), body)
        return Response(columns, media_type="application/octet-stream")

    async def step(request: Request) -> Response:
        asked = await read_body(request, MakeStepRequest)
        made = await control.gradients.step(*model_asked(request), asked)
        if asked.keep_steps is not None:
            await control.deletions.delete_checkpoints(*model_asked(request), asked.keep_steps)
        return record_reply(request, made)

    async def serve(request: Request) -> Response:
        asked = await read_body(request, ServeStepRequest)
        return record_reply(request, await control.gradients.serve(*model_asked(request), asked))

    async def release(request: Request) -> Response:
        return record_reply(request, await control.gradients.release(*model_asked(request)))

    return [
        Route(f"{MODEL_ROUTE}/release", release, methods=["POST"]),
        Route(f"{MODEL_ROUTE}/gradients", add, methods=["POST"]),
        Route(f"{MODEL_ROUTE}/step", step, methods=["POST"]),
        Route(f"{MODEL_ROUTE}/serve", serve, methods=["POST"]),
    ]


def worker_routes(control: Control) -> list[BaseRoute]:
    """Returns the routes about base models and machines, to be mounted behind the key check."""

    async def load_base(request: Request) -> Response:
        return record_reply(request, await control.load_base(await read_body(request, LoadBaseRequest)))

    async def drain_node(request: Request) -> Response:
        operator_only(request, "it is about the server's machines")
        return record_reply(request, await control.drain_node(await read_body(request, DrainNodeRequest)))

    return [
        Route("/art/base_models", load_base, methods=["POST"]),
        Route("/art/cluster/drain", drain_node, methods=["POST"]),
    ]


def control_routes(control: Control) -> list[BaseRoute]:
    """Returns the control routes, to be mounted behind the key check, which identifies the caller."""

    async def register(request: Request) -> Response:
        asked, resume = await read_body(request, RegisterRequest), _read_resume(request)
        return record_reply(request, await control.register(asked, resume=resume))

    async def list_models(request: Request) -> Response:
        tenant = tenant_in(request.scope)
        models = [with_external_names(tenant, one) for one in await control.summaries(tenant)]
        return json_reply(ModelList(models=models))

    async def get_model(request: Request) -> Response:
        project, name = model_asked(request)
        info = control.describe(control.models.get(project, name))
        jobs = await control.jobs.store.unfinished_ids(project, name)
        shown = [external_name(tenant_in(request.scope), job_id) for job_id in jobs]
        return record_reply(request, info.model_copy(update={"unfinished_jobs": shown}))

    async def delete_model(request: Request) -> Response:
        await control.deletions.delete_model(*model_asked(request))
        return record_reply(request, DeleteModelReply(**request.path_params))

    async def train(request: Request) -> Response:
        asked = await read_body(request, TrainJobRequest)
        return record_reply(request, await control.jobs.submit(*model_asked(request), asked))

    async def jobs(request: Request) -> Response:
        return json_reply(await _listed_jobs(control, tenant_in(request.scope), _read_listing(request)))

    async def job(request: Request) -> Response:
        return record_reply(request, await control.jobs.info(job_asked(request)))

    async def events(request: Request) -> Response:
        job_id, after = job_asked(request), _read_after(request)
        await control.jobs.info(job_id)
        lines = _event_lines(tenant_in(request.scope), control.jobs.events(job_id, after))
        return StreamingResponse(lines, media_type="application/x-ndjson")

    return [
        Route("/art/models", register, methods=["POST"]),
        Route("/art/models", list_models, methods=["GET"]),
        Route(MODEL_ROUTE, get_model, methods=["GET"]),
        Route(MODEL_ROUTE, delete_model, methods=["DELETE"]),
        Route(f"{MODEL_ROUTE}/train", train, methods=["POST"]),
        _train_on(SftJobRequest, control),
        _train_on(ExtensionJobRequest, control),
        Route("/art/jobs", jobs, methods=["GET"]),
        Route("/art/jobs/{job_id}", job, methods=["GET"]),
        Route("/art/jobs/{job_id}/events", events, methods=["GET"]),
        *checkpoint_routes(control),
        *gradient_routes(control),
        *worker_routes(control),
    ]


def _train_on(kind: type[SftJobRequest], control: Control) -> Route:
    async def train_on_conversations(request: Request) -> Response:
        asked = await read_body(request, kind, largest=LARGEST_SFT_BODY, advice=_SMALLER_SFT)
        return record_reply(request, await control.jobs.submit(*model_asked(request), asked))

    return Route(f"{MODEL_ROUTE}/{kind.VERB}", train_on_conversations, methods=["POST"])


async def _event_lines(tenant: Tenant, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A job's events as who asked may read them."""
    async for line in lines:
        if tenant is None or not line.strip():
            yield line
        else:
            event = with_external_names(tenant, JobEvent.model_validate_json(line))
            yield one_line(event.model_dump_json()) + b"\n"


async def _listed_jobs(control: Control, tenant: Tenant, asked: JobListing) -> JobList:
    named = {name: getattr(asked, name) for name in ("model", "before")}
    inside = {name: internal_name(tenant, text) for name, text in named.items() if text is not None}
    found = await control.jobs.store.listed(tenant, **asked.model_copy(update=inside).model_dump())
    before = None if found.before is None else external_name(tenant, found.before)
    return JobList(jobs=[with_external_names(tenant, one) for one in found.jobs], before=before)


def json_reply(record: Strict) -> Response:
    """Returns a record whose names are those of who asked already."""
    return Response(record.model_dump_json(), media_type="application/json")


def _read_listing(request: Request) -> JobListing:
    try:
        return JobListing.model_validate(dict(request.query_params))
    except ValidationError as error:
        problem = f"the list of jobs cannot be asked for so: {first_flaw(error)}"
        raise _refused(problem, str(error.errors()[0]["loc"][0])) from error


def _read_resume(request: Request) -> bool:
    text = request.query_params.get(RESUME, "false")
    if text not in ("true", "false"):
        problem = f"{RESUME}={text!r}: say true to let the model's unfinished jobs go on, or false"
        raise _refused(problem, RESUME)
    return text == "true"


_DIGITS = 18
"""The most digits of a number that a database holds."""


def _read_after(request: Request) -> int:
    text = request.query_params.get("after", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise _refused(f"after={text[:80]!r} is no event number; use the last number you saw, or 0", "after")
    return int(text)


def _refused(problem: str, param: str) -> RequestError:
    return RequestError(problem, status=400, code="invalid_request", param=param)
