"""The REST part of Tinker's API: sessions, runs and checkpoints, listed and changed; a checkpoint's files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from art.errors import NotFoundError
from art.wire.models import ModelSummary
from art_extensions.tinker.art_server import PROJECT
from art_extensions.tinker.bodies import read
from art_extensions.tinker.records import PathAsked, ProjectAsked, TtlAsked
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.runs import find_run, find_session
from art_extensions.tinker.saved_weights import KINDS, find_own, find_weights, is_over, stored_until
from art_extensions.tinker.session_search import SearchAsked, search_sessions
from art_extensions.tinker.sessions import KeyRing
from art_extensions.tinker.store import Run, Sampler, SavedCheckpoint, Tables, TinkerSession, TinkerStore
from art_extensions.tinker.weights_sources import ART, art_model, art_step, find_source, is_art_path

OwnerOf = Callable[[Request], Awaitable[str]]
_MOST_DIGITS = 10
_CHECKPOINTS = "/api/v1/training_runs/{run_id}/checkpoints"
_CHECKPOINT = f"{_CHECKPOINTS}/{{kind}}/{{name}}"
MOST_LISTED = 1000


class Listings:
    """The handlers."""

    def __init__(self, store: TinkerStore, owner_of: OwnerOf, keys: KeyRing) -> None:
        self._store, self._owner_of, self._keys = store, owner_of, keys

    async def training_runs(self, request: Request) -> Response:
        owner = await self._owner_of(request)
        project = request.query_params.get("project_id")
        runs = await self._store.run(lambda tables: _runs(tables, owner, project))
        saved = await self._store.run(lambda tables: _saved(tables, owner=owner))
        shown, cursor = _page(request, list(reversed(runs)))
        listed = [_run(one, saved) for one in shown]
        return JSONResponse({"training_runs": listed, "cursor": cursor})

    async def training_run(self, request: Request) -> Response:
        owner = await self._owner_of(request)
        if (model := await self._art_model(owner, request)) is not None:
            return JSONResponse(_art_run(owner, model))
        run = await _run_of(self._store, owner, request)
        saved = await self._store.run(lambda tables: _saved(tables, owner=owner))
        return JSONResponse(_run(run, saved))

    async def run_checkpoints(self, request: Request) -> Response:
        owner = await self._owner_of(request)
        if (model := await self._art_model(owner, request)) is not None:
            return JSONResponse({"checkpoints": _art_checkpoints(model)})
        run = await _run_of(self._store, owner, request)
        saved = await self._store.run(lambda tables: _saved(tables, run_id=run.run_id))
        return JSONResponse({"checkpoints": [_checkpoint(one) for one in saved]})

    async def _art_model(self, owner: str, request: Request) -> ModelSummary | None:
        """The model of ART's own that the address names; None where it is a run's. Raises NotFoundError."""
        asked = art_model(request.path_params["run_id"])
        if asked is None:
            return None
        models = await (await self._keys.server(owner)).models()
        found = [one for one in models if (one.project, one.name) == asked]
        if not found:
            raise NotFoundError(f"no model {'/'.join(asked)!r} of this key", status=404)
        return found[0]

    async def checkpoints(self, request: Request) -> Response:
        owner = await self._owner_of(request)
        saved = await self._store.run(lambda tables: _saved(tables, owner=owner))
        shown, cursor = _page(request, list(reversed(saved)))
        return JSONResponse({"checkpoints": [_checkpoint(one) for one in shown], "cursor": cursor})

    async def delete(self, request: Request) -> Response:
        owner = await self._owner_of(request)
        path = _saved_path(request)
        if not await self._store.run(lambda tables: tables.delete(SavedCheckpoint, path=path, owner=owner)):
            raise NotFoundError(f"no checkpoint {path!r} of this key", status=404)
        return Response(status_code=204)

    async def refuse_bare_name(self, request: Request) -> Response:
        name = request.path_params["name"]
        raise refusal(f"{name!r} does not say which weights: use weights/{name} or sampler_weights/{name}")

    async def publish(self, request: Request) -> Response:
        await _change(self._store, await self._owner_of(request), request, public=request.method == "POST")
        return Response(status_code=204)

    async def ttl(self, request: Request) -> Response:
        owner = await self._owner_of(request)
        asked = await read(request, TtlAsked)
        await _change(self._store, owner, request, expires_at=stored_until(asked.ttl_seconds))
        return Response(status_code=204)

    async def file(self, request: Request) -> Response:
        """A file of the adapter, as PEFT has it."""
        owner = await self._owner_of(request)
        project, model, step = await self._place(request, owner)
        found = await (await self._keys.server(owner)).file(model, step, request.path_params["file"], project)
        return Response(found, media_type="application/octet-stream")

    async def files(self, request: Request) -> Response:
        owner = await self._owner_of(request)
        project, model, step = await self._place(request, owner)
        manifest = await (await self._keys.server(owner)).files(model, step, project)
        return Response(manifest.model_dump_json(), media_type="application/json")

    async def _place(self, request: Request, owner: str) -> tuple[str, str, int]:
        """The project, the model and the step of the address."""
        path = _path(request)
        if is_art_path(path):
            return art_step(path)
        saved = await self._store.run(lambda tables: find_own(tables, path, owner))
        return PROJECT, saved.model, saved.step

    async def weights_info(self, request: Request) -> Response:
        owner = await self._owner_of(request)
        path = (await read(request, PathAsked)).tinker_path
        if is_art_path(path):
            source = await find_source(self._store, await self._keys.server(owner), path, owner)
            return JSONResponse(_weights_info(source.base_model, source.lora))
        saved = await self._store.run(lambda tables: find_weights(tables, path, owner))
        run = await self._store.run(lambda tables: tables.find(Run, run_id=saved.run_id))
        return JSONResponse(_weights_info("", {}) if run is None else _weights_info(run.base_model, run.lora))

    async def sessions(self, request: Request) -> Response:
        owner = await self._owner_of(request)
        found = await self._store.run(lambda tables: tables.select(TinkerSession, owner=owner))
        shown, _ = _page(request, list(reversed(found)))
        return JSONResponse({"sessions": [one.session_id for one in shown]})

    async def session(self, request: Request) -> Response:
        owner, name = await self._owner_of(request), request.path_params["session_id"]
        found = await self._store.run(lambda tables: find_session(tables, name, owner))
        runs = await self._store.run(lambda tables: tables.select(Run, session_id=name))
        samplers = await self._store.run(lambda tables: tables.select(Sampler, session_id=name))
        return JSONResponse(
            {
                "training_run_ids": [one.run_id for one in runs],
                "sampler_ids": [one.sampler_id for one in samplers],
                "user_metadata": dict(found.metadata),
                "display_name": found.display_name,
            }
        )

    async def assign_project(self, request: Request) -> Response:
        """A project is a word by which sessions and runs are found; it has no rights of its own."""
        owner, name = await self._owner_of(request), request.path_params["session_id"]
        project = (await read(request, ProjectAsked)).project_id
        where = {"session_id": name, "owner": owner}
        if not await self._store.run(lambda tables: tables.change(TinkerSession, where, project_id=project)):
            raise NotFoundError(f"no session {name!r} of this key", status=404)
        return Response(status_code=204)

    async def search(self, request: Request) -> Response:
        owner, asked = await self._owner_of(request), await read(request, SearchAsked)
        return JSONResponse(await self._store.run(lambda tables: search_sessions(tables, owner, asked)))


def listing_routes(store: TinkerStore, owner_of: OwnerOf, keys: KeyRing) -> list[BaseRoute]:
    """Returns the routes."""
    made = Listings(store, owner_of, keys)
    return [
        Route("/api/v1/training_runs", made.training_runs, methods=["GET"]),
        Route("/api/v1/training_runs/{run_id}", made.training_run, methods=["GET"]),
        Route(_CHECKPOINTS, made.run_checkpoints, methods=["GET"]),
        Route("/api/v1/checkpoints", made.checkpoints, methods=["GET"]),
        Route(_CHECKPOINT, made.delete, methods=["DELETE"]),
        Route(f"{_CHECKPOINTS}/{{name}}", made.refuse_bare_name, methods=["DELETE"]),
        Route(f"{_CHECKPOINT}/publish", made.publish, methods=["POST", "DELETE"]),
        Route(f"{_CHECKPOINT}/ttl", made.ttl, methods=["PUT"]),
        Route(f"{_CHECKPOINT}/files", made.files, methods=["GET"]),
        Route(f"{_CHECKPOINT}/files/{{file}}", made.file, methods=["GET"]),
        Route("/api/v1/weights_info", made.weights_info, methods=["POST"]),
        Route("/api/v1/sessions", made.sessions, methods=["GET"]),
        Route("/api/v1/sessions/search", made.search, methods=["POST"]),
        Route("/api/v1/sessions/{session_id}", made.session, methods=["GET"]),
        Route("/api/v1/sessions/{session_id}/project", made.assign_project, methods=["PUT"]),
    ]


async def _run_of(store: TinkerStore, owner: str, request: Request) -> Run:
    name = request.path_params["run_id"]
    return await store.run(lambda tables: find_run(tables, name, owner))


async def _change(store: TinkerStore, owner: str, request: Request, **values: Any) -> None:
    where = {"path": _saved_path(request), "owner": owner}
    if not await store.run(lambda tables: tables.change(SavedCheckpoint, where, **values)):
        raise NotFoundError(f"no checkpoint {where['path']!r} of this key", status=404)


def _path(request: Request) -> str:
    return "tinker://{run_id}/{kind}/{name}".format_map(request.path_params)


def _saved_path(request: Request) -> str:
    """The path of weights that a program saved. Raises RequestError for those of a model of ART's own."""
    path = _path(request)
    if is_art_path(path):
        raise refusal(f"{path!r} is of a model that ART trains: ART decides which of its steps stay")
    return path


def _runs(tables: Tables, owner: str, project_id: str | None) -> list[Run]:
    runs = tables.select(Run, owner=owner)
    if project_id is None:
        return runs
    inside = {one.session_id for one in tables.select(TinkerSession, owner=owner, project_id=project_id)}
    return [one for one in runs if one.session_id in inside]


def _saved(tables: Tables, **where: Any) -> list[SavedCheckpoint]:
    return [one for one in tables.select(SavedCheckpoint, **where) if not is_over(one)]


def _page(request: Request, rows: list[Any]) -> tuple[list[Any], dict[str, int]]:
    """The rows that `limit` and `offset` ask for. Raises RequestError for numbers that are none."""
    limit, offset = (
        request.query_params.get(name, default) for name, default in (("limit", "20"), ("offset", "0"))
    )
    if not all(one.isdecimal() and len(one) < _MOST_DIGITS for one in (limit, offset)):
        raise refusal(f"limit={limit[:20]!r} and offset={offset[:20]!r}: send whole numbers below 10^9")
    first, most = int(offset), min(int(limit) or MOST_LISTED, MOST_LISTED)
    cursor = {"offset": first, "limit": most, "total_count": len(rows)}
    return rows[first : first + most], cursor


def _run(run: Run, saved: list[SavedCheckpoint]) -> dict[str, Any]:
    mine = [one for one in saved if one.run_id == run.run_id]
    newest = {kind: [one for one in mine if one.kind == kind][-1:] for kind in KINDS}
    training, sampler = newest["weights"], newest["sampler_weights"]
    return {
        "training_run_id": run.run_id,
        "base_model": run.base_model,
        "model_owner": run.owner,
        "is_lora": True,
        "lora_rank": run.lora.get("r"),
        "last_request_time": _time(run.used_at),
        "last_checkpoint": _checkpoint(training[0]) if training else None,
        "last_sampler_checkpoint": _checkpoint(sampler[0]) if sampler else None,
        "user_metadata": {name: str(value) for name, value in run.metadata.items()},
    }


def _weights_info(base_model: str, lora: Mapping[str, Any]) -> dict[str, Any]:
    return {"base_model": base_model, "is_lora": True, "lora_rank": lora.get("r"), "train_unembed": False}


def _art_run(owner: str, model: ModelSummary) -> dict[str, Any]:
    """A model of ART's own, as if it were a run. Its rank is in the information of its weights."""
    checkpoints = _art_checkpoints(model)
    return {
        "training_run_id": f"{ART}{model.project}:{model.name}",
        "base_model": model.base_model,
        "model_owner": owner,
        "is_lora": True,
        "last_request_time": _time(model.updated_at or 0.0),
        "last_checkpoint": checkpoints[-1] if checkpoints else None,
    }


def _art_checkpoints(model: ModelSummary) -> list[dict[str, Any]]:
    """The steps of the model. Of their times that of the newest is known."""
    return [
        {
            "checkpoint_id": f"weights/{step}",
            "checkpoint_type": "training",
            "time": _time(model.updated_at or 0.0),
            "tinker_path": f"tinker://{ART}{model.project}:{model.name}/weights/{step}",
            "public": False,
        }
        for step in model.checkpoints
    ]


def _checkpoint(saved: SavedCheckpoint) -> dict[str, Any]:
    return {
        "checkpoint_id": f"{saved.kind}/{saved.name}",
        "checkpoint_type": KINDS[saved.kind],
        "time": _time(saved.created_at),
        "tinker_path": saved.path,
        "public": saved.public,
        "user_metadata": dict(saved.metadata),
        "expires_at": None if saved.expires_at is None else _time(saved.expires_at),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
