"""The routes of a model's checkpoints: take them home, fork, take over, unload, delete."""

from __future__ import annotations

from asyncio import to_thread

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from art.server.checkpoints.files import file_of, manifest_of
from art.server.control import Control
from art.server.routes.endpoint import MODEL, model_asked, named, operator_only, read_body, reply
from art.wire.models import AdoptRequest, DeleteCheckpointsRequest, ForkRequest, UnloadStepsRequest


def checkpoint_routes(control: Control) -> list[BaseRoute]:
    """To be mounted behind the key check."""

    async def delete_checkpoints(request: Request) -> Response:
        asked = await read_body(request, DeleteCheckpointsRequest)
        return reply(
            request, await control.deletions.delete_checkpoints(*model_asked(request), asked.keep_steps)
        )

    async def unload_steps(request: Request) -> Response:
        asked = await read_body(request, UnloadStepsRequest)
        return reply(request, control.deletions.unload_steps(*model_asked(request), asked.keep_steps))

    async def files(request: Request) -> Response:
        checkpoints = control.models.checkpoints(control.models.get(*model_asked(request)))
        return reply(request, await to_thread(manifest_of, checkpoints, request.path_params["step"]))

    async def file(request: Request) -> Response:
        checkpoints = control.models.checkpoints(control.models.get(*model_asked(request)))
        asked = request.path_params["step"], request.path_params["file"]
        return FileResponse(await to_thread(file_of, checkpoints, *asked))

    async def fork(request: Request) -> Response:
        asked = await read_body(request, ForkRequest)
        return reply(request, await control.arrivals.fork(*model_asked(request), asked))

    async def adopt(request: Request) -> Response:
        operator_only(request)
        asked = await read_body(request, AdoptRequest)
        return reply(request, await control.arrivals.adopt(*model_asked(request), asked))

    files_of_step = f"{MODEL}/checkpoints/{{step:int}}/files"
    return [
        Route(f"{MODEL}/delete_checkpoints", named(delete_checkpoints), methods=["POST"]),
        Route(f"{MODEL}/unload_steps", named(unload_steps), methods=["POST"]),
        Route(files_of_step, named(files), methods=["GET"]),
        Route(f"{files_of_step}/{{file}}", named(file), methods=["GET"]),
        Route(f"{MODEL}/fork", named(fork), methods=["POST"]),
        Route(f"{MODEL}/adopt", named(adopt), methods=["POST"]),
    ]
