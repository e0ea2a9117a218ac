"""Tinker's API as an application: the routes that its client calls, and which of them this server has not.

    POST a heavy call        -> {request_id}, at once       then POST retrieve_future until it has ended
    everything else          -> its answer

A heavy call that is wrong fails as its future does, so that the numbers of a run have no gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art.engine.base_models import resolve_base, with_folder
from art.errors import (
    ARTError,
    AuthenticationError,
    NotFoundError,
    OverloadedError,
    RequestError,
    ServerError,
    ServerUnreachableError,
    is_installed,
)
from art_extensions.tinker.art_server import ArtServer
from art_extensions.tinker.bodies import read, read_bytes
from art_extensions.tinker.copies import copy_weights
from art_extensions.tinker.custom_loss.loss_graph import CreateCustomLoss, check_loss
from art_extensions.tinker.external import external_routes
from art_extensions.tinker.forward_backward import read_envelope
from art_extensions.tinker.listings import listing_routes
from art_extensions.tinker.older_clients import (
    JSON_BATCH,
    BatchAsked,
    ClientConfigAsked,
    ForwardAsked,
    ForwardBackwardAsked,
    batch_as_json,
    pack_batch,
    polls_for_all,
    samples_as_json,
)
from art_extensions.tinker.records import (
    Asked,
    CopyWeights,
    CreateModel,
    CreateSampler,
    CreateSession,
    FinishAsked,
    LoadWeights,
    LoraAsked,
    ModelAsked,
    OptimStep,
    RequestAsked,
    RetrieveFuture,
    RetrieveFutures,
    RunAsked,
    SampleAsked,
    SamplerAsked,
    SaveExternal,
    SaveForSampler,
    SaveWeights,
    SessionAsked,
)
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.run_settings import lora_of
from art_extensions.tinker.runs import (
    LARGEST_BATCH,
    TrainingRuns,
    find_run,
    find_session,
    require_open,
)
from art_extensions.tinker.samples import SampleFutures, sample_id
from art_extensions.tinker.saved_weights import find_sampler
from art_extensions.tinker.sessions import KeyRing, Sessions
from art_extensions.tinker.store import (
    KeptLoss,
    OpenSample,
    QueuedRequest,
    Run,
    Sampler,
    Tables,
    TinkerSession,
    TinkerStore,
    now,
)
from art_extensions.tinker.weights_sources import find_source

T = TypeVar("T")
_log = logging.getLogger(__name__)

MOST_LOSSES = 100
POLL_S = 25.0
"""How long a question for a future waits; the client gives it 45 seconds."""
PROTOBUF = "application/x-protobuf"
REFUSED = {
    "/api/v1/billing/usage/events": "this server bills nothing",
    "/api/v1/billing/usage/checkpoints/current": "this server bills nothing",
    "/api/v1/audit": "this server keeps no audit log",
    "/api/v1/auth/token": "this server takes keys, no tokens",
    "/api/v1/sessions/{session_id}/trace_export": "this server writes no traces for Perfetto",
}
"""Routes of the hosted service that this one has not, and why."""


class TinkerRoutes:
    """The handlers of training, sampling and sessions."""

    def __init__(
        self,
        store: TinkerStore,
        keys: KeyRing,
        runs: TrainingRuns,
        samples: SampleFutures,
        sessions: Sessions,
    ) -> None:
        self.store, self.keys, self.runs, self.samples, self.sessions = store, keys, runs, samples, sessions
        self.closing = asyncio.Event()
        """Set when this process ends: nobody is kept waiting for a future then."""

    async def owner(self, request: Request) -> str:
        """Raises AuthenticationError."""
        return await self.keys.owner(request.headers.get("x-api-key", ""))

    async def healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def client_config(self, request: Request) -> Response:
        await self.owner(request)
        asked = await read(request, ClientConfigAsked)
        # Releases up to 0.22 send JSON where the first of these is not set.
        flags = {
            "proto_write_fwdbwd": True,
            "proto_compress_fwdbwd": True,
            "sample_join_sampling_session": True,
            "sample_use_retrieve_futures": polls_for_all(asked),
        }
        # Where torch is missing here, as beside a server elsewhere, the client computes its losses itself.
        return JSONResponse({**flags, "custom_loss_server_side": is_installed("torch")})

    async def dynamic_config(self, request: Request) -> Response:
        await self.owner(request)
        return JSONResponse({"sample_cancel_enabled": True})

    async def telemetry(self, request: Request) -> Response:
        """Taken, and thrown away."""
        await self.owner(request)
        return JSONResponse({"status": "accepted"})

    async def capabilities(self, request: Request) -> Response:
        server = await self.keys.server(await self.owner(request))
        bases = {name: room for name, room in (await server.served()).items() if "@" not in name}
        models = [
            {"model_name": name, "max_context_length": room, "trainable": True, "sampleable": True}
            for name, room in bases.items()
        ]
        return JSONResponse({"supported_models": models})

    async def create_session(self, request: Request) -> Response:
        owner, asked = await self.owner(request), await read(request, CreateSession)
        session = TinkerSession(
            session_id=str(uuid4()),
            owner=owner,
            created_at=now(),
            seen_at=now(),
            display_name=asked.display_name,
            project_id=asked.project_id,
            metadata=asked.user_metadata or {},
        )
        await self.store.run(lambda tables: tables.add(session))
        return JSONResponse({"session_id": session.session_id, "type": "create_session"})

    async def heartbeat(self, request: Request) -> Response:
        owner, asked = await self.owner(request), await read(request, SessionAsked)
        await self.sessions.heartbeat(owner, asked.session_id)
        return JSONResponse({"type": "session_heartbeat"})

    async def finish(self, request: Request) -> Response:
        owner, asked = await self.owner(request), await read(request, FinishAsked)
        session = await self._session(owner, request.path_params["session_id"])
        await self.sessions.end(session, str(asked.reason.get("type", "success")), asked.detail)
        await self.runs.free_session(session.session_id)
        return JSONResponse({})

    async def _session(self, owner: str, session_id: str) -> TinkerSession:
        return await self.store.run(lambda tables: find_session(tables, session_id, owner))

    async def create_model(self, request: Request) -> Response:
        owner, asked = await self.owner(request), await read(request, CreateModel)
        if asked.optimizer_config.type != "adamw":
            raise refusal(
                f"optimizer {asked.optimizer_config.type!r} is not supported: this server has AdamW"
            )
        lora = asked.lora_config or LoraAsked(rank=32)
        run = self._run(owner, asked.session_id, asked.model_seq_id, asked.base_model, asked.user_metadata)
        shaped = replace(run, lora=lora_of(lora).model_dump())
        return await self._begin(shaped, "create_model", text_of(lora))

    @staticmethod
    def _run(
        owner: str, session_id: str, number: int, base_model: str, metadata: dict[str, Any] | None
    ) -> Run:
        return Run(
            run_id=f"{session_id}:train:{number}",
            session_id=session_id,
            owner=owner,
            base_model=base_model,
            name=f"{session_id}-{number}",
            lora={},
            metadata=metadata or {},
            created_at=now(),
            used_at=now(),
        )

    async def _begin(self, run: Run, kind: str, body: bytes) -> Response:
        """Writes down a new run and the request that begins it, number 0."""
        await self._session(run.owner, run.session_id)
        return await self._submit(run.owner, run.run_id, 0, kind, body, run)

    async def _submit(
        self, owner: str, run_id: str, seq: int | None, kind: str, body: bytes, run: Run | None = None
    ) -> Response:
        if seq is None or (seq < 1 and run is None):
            raise refusal(f"seq_id {seq!r} is no number from 1", param="seq_id")
        queued = QueuedRequest(
            request_id=f"{run_id}:{seq}",
            owner=owner,
            run_id=run_id,
            seq=seq,
            kind=kind,
            body=body,
            created_at=now(),
        )
        return future(await self.runs.submit(queued, run), model_id=run_id)

    async def unload_model(self, request: Request) -> Response:
        """Clients up to release 0.25 end a run so."""
        owner, asked = await self.owner(request), await read(request, ModelAsked)
        run = await self.store.run(lambda tables: find_run(tables, asked.model_id, owner))
        return future(await self.runs.unload(run), model_id=run.run_id)

    async def forward(self, request: Request) -> Response:
        """Clients up to release 0.22 ask for logprobs alone so."""
        owner, asked = await self.owner(request), await read(request, ForwardAsked)
        return await self._queue_json(owner, asked, asked.forward_input, forward_only=True)

    async def forward_backward(self, request: Request) -> Response:
        owner, kind = await self.owner(request), request.headers.get("content-type", "")
        if kind.startswith("application/json"):
            asked = await read(request, ForwardBackwardAsked)
            return await self._queue_json(owner, asked, asked.forward_backward_input, forward_only=False)
        body, encoding = await read_bytes(request), request.headers.get("content-encoding", "")
        envelope = await asyncio.to_thread(
            read_envelope, body, content_type=kind, content_encoding=encoding or None, largest=LARGEST_BATCH
        )
        stored = encoding.encode() + b"\0" + body
        return await self._submit(owner, envelope.model_id, envelope.seq_id, "forward_backward", stored)

    async def _queue_json(
        self, owner: str, asked: RunAsked, batch: BatchAsked, *, forward_only: bool
    ) -> Response:
        packed = await asyncio.to_thread(pack_batch, asked, batch, forward_only=forward_only)
        return await self._submit(owner, asked.model_id, asked.seq_id, JSON_BATCH, b"\0" + packed)

    async def create_custom_loss(self, request: Request) -> Response:
        """Keeps a loss, whose graph is checked here."""
        owner, asked = await self.owner(request), await read(request, CreateCustomLoss)
        await asyncio.to_thread(check_loss, asked)
        kept = KeptLoss(
            loss_id=f"{asked.session_id}:loss:{asked.custom_loss_seq_id}",
            owner=owner,
            session_id=asked.session_id,
            body=asked.model_dump_json(),
            created_at=now(),
        )

        def keep(tables: Tables) -> None:
            require_open(tables, asked.session_id, owner)
            if len(tables.select(KeptLoss, session_id=asked.session_id)) >= MOST_LOSSES:
                raise refusal(f"a session has {MOST_LOSSES} losses at most: create each once")
            tables.add(kept)

        await self.store.run(keep)
        return future(kept.loss_id)

    def queued(self, kind: str, shape: type[RunAsked]) -> Callable[[Request], Awaitable[Response]]:
        """Returns a handler that writes down such a request of a run."""

        async def queue(request: Request) -> Response:
            owner, asked = await self.owner(request), await read(request, shape)
            return await self._submit(owner, asked.model_id, asked.seq_id, kind, text_of(asked))

        return queue

    async def copy_weights(self, request: Request) -> Response:
        owner, asked = await self.owner(request), await read(request, CopyWeights)
        key = request.headers.get("x-idempotency-key")
        path = await self.store.run(lambda tables: copy_weights(tables, owner, asked, key))
        return JSONResponse({"tinker_path": path})

    async def load_weights(self, request: Request) -> Response:
        """Into a run that is there (`model_id`), or into a new one (`session_id`, `model_seq_id`)."""
        owner, asked = await self.owner(request), await read(request, LoadWeights)
        if asked.model_id is not None:
            return await self._submit(owner, asked.model_id, asked.seq_id, "load_weights", text_of(asked))
        if asked.session_id is None or asked.model_seq_id is None:
            raise refusal("load_weights needs model_id, or session_id and model_seq_id")
        base = asked.base_model or ""
        run = self._run(owner, asked.session_id, asked.model_seq_id, base, asked.user_metadata)
        return await self._begin(run, "load_new", text_of(asked))

    async def get_info(self, request: Request) -> Response:
        """Describes a run. Its client, and those of its samplers, load the tokenizer by `model_data`."""
        owner, asked = await self.owner(request), await read(request, ModelAsked)
        run = await self.store.run(lambda tables: find_run(tables, asked.model_id, owner))
        folder = await tokenizer_of(run.base_model)
        return JSONResponse(
            {
                "type": "get_info",
                "model_id": run.run_id,
                "model_name": run.base_model,
                "is_lora": True,
                "lora_rank": run.lora.get("r"),
                "model_data": {"model_name": folder, "tokenizer_id": folder},
            }
        )

    async def create_sampling_session(self, request: Request) -> Response:
        owner, asked = await self.owner(request), await read(request, CreateSampler)
        await self.store.run(lambda tables: require_open(tables, asked.session_id, owner))
        if not (asked.base_model or asked.model_path):
            raise refusal("create_sampling_session needs base_model or model_path")
        server = await self.keys.server(owner)
        base, model, step = asked.base_model or "", asked.base_model or "", None
        if asked.model_path is not None:
            source = await find_source(self.store, server, asked.model_path, owner)
            base, step = source.base_model or base, source.step
            model = await server.serve(source.model, source.step, source.project)
        else:
            model = await load_base(server, base)
        sampler = Sampler(
            sampler_id=f"{asked.session_id}:sample:{asked.sampling_session_seq_id}",
            owner=owner,
            session_id=asked.session_id,
            base_model=base,
            path=asked.model_path,
            model=model,
            step=step,
            created_at=now(),
        )
        await self.store.run(lambda tables: tables.add(sampler))
        return JSONResponse({"sampling_session_id": sampler.sampler_id, "type": "create_sampling_session"})

    async def join_sampling_session(self, request: Request) -> Response:
        """A number for another client of a sampler, so that their requests have numbers of their own."""
        owner, asked = await self.owner(request), await read(request, SamplerAsked)
        sampler = await self._sampler(owner, asked.sampling_session_id)
        where, clones = {"sampler_id": sampler.sampler_id}, sampler.clones + 1
        await self.store.run(lambda tables: tables.change(Sampler, where, clones=clones))
        return JSONResponse({"client_counter": clones, "type": "join_sampling_session"})

    async def _sampler(self, owner: str, sampler_id: str | None) -> Sampler:
        return await self.store.run(lambda tables: find_sampler(tables, sampler_id, owner))

    async def get_sampler(self, request: Request) -> Response:
        sampler = await self._sampler(await self.owner(request), request.path_params["sampler_id"])
        return JSONResponse(
            {
                "sampler_id": sampler.sampler_id,
                "base_model": await tokenizer_of(sampler.base_model),
                "model_path": sampler.path,
            }
        )

    async def asample(self, request: Request) -> Response:
        owner, asked = await self.owner(request), await read(request, SampleAsked)
        self.samples.check_room(owner, asked)  # before anything is written
        fetched = self.samples.take_fetched()

        def note(tables: Tables) -> Sampler:
            sampler = find_sampler(tables, asked.sampling_session_id, owner)
            made, session = sample_id(sampler, asked), sampler.session_id
            tables.add(OpenSample(request_id=made, session_id=session, created_at=now()))
            for one in fetched:
                tables.delete(OpenSample, request_id=one)
            return sampler

        request_id, found = self.samples.submit(await self.store.run(note), asked)
        return future(request_id, sample_sequence_ids=found.sequence_ids)

    async def retrieve_future(self, request: Request) -> Response:
        """The outcome, or that it is not there yet: after a while, and at once when this process ends."""
        owner, asked = await self.owner(request), await read(request, RetrieveFuture)
        plain = request.headers.get("accept") == "application/json"
        found = await self._before_closing(self._outcome(owner, asked, plain=plain))
        return pending(asked.request_id) if found is None else found

    async def retrieve_futures(self, request: Request) -> Response:
        """The requests that ended since a cursor, of one client of a sampler. It fetches each result."""
        owner, asked = await self.owner(request), await read(request, RetrieveFutures)
        target = asked.target
        sampler_id = (await self._sampler(owner, target.sampling_session_id)).sampler_id
        self.samples.forget(sampler_id, asked.retrieved_request_ids)
        seconds = POLL_S if asked.timeout is None else min(asked.timeout, POLL_S)
        found = await self._before_closing(
            self.samples.ended(sampler_id, target.cloned_sampler_id, asked.prev_cursor, seconds)
        )
        completions, cursor = found or ([], asked.prev_cursor)
        return JSONResponse({"completions": completions, "cursor": cursor})

    async def _before_closing(self, answering: Coroutine[Any, Any, T]) -> T | None:
        """The answer; None where this process ends before."""
        outcome = asyncio.create_task(answering)
        closing = asyncio.create_task(self.closing.wait())
        try:
            await asyncio.wait({outcome, closing}, return_when=asyncio.FIRST_COMPLETED)
            return outcome.result() if outcome.done() else None
        finally:
            outcome.cancel()
            closing.cancel()

    async def _outcome(self, owner: str, asked: RetrieveFuture, *, plain: bool) -> Response:
        """plain: the client takes no protobuf."""
        sample = self.samples.find(owner, asked.request_id)
        if sample is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await sample.done.wait()
            if not sample.done.is_set():
                return pending(asked.request_id)
            self.samples.fetched.add(asked.request_id)
            if plain and not sample.failed:
                return ended(await asyncio.to_thread(samples_as_json, sample.result), protobuf=False)
            return ended(sample.result, protobuf=not sample.failed)
        if ":sample:" in asked.request_id:
            raise ServerError("the server was started again: ask for the sample anew", status=410)
        if ":loss:" in asked.request_id:
            where = {"loss_id": asked.request_id, "owner": owner}
            if await self.store.run(lambda tables: tables.find(KeptLoss, **where)) is None:
                raise NotFoundError(f"no loss {asked.request_id!r} of this key", status=404)
            return JSONResponse({"loss_id": asked.request_id, "type": "create_custom_loss"})
        found = await self.runs.retrieve(owner, asked.request_id, POLL_S)
        if found is None:
            return pending(asked.request_id)
        is_batch = found.kind in ("forward_backward", JSON_BATCH) and found.state == "done"
        if is_batch and (plain or found.kind == JSON_BATCH):
            return ended(await asyncio.to_thread(batch_as_json, found.result or b""), protobuf=False)
        return ended(found.result or b"{}", protobuf=is_batch)

    async def cancel_future(self, request: Request) -> Response:
        owner, asked = await self.owner(request), await read(request, RequestAsked)
        self.samples.cancel(owner, asked.request_id)
        return JSONResponse({})

    def refusing(self, reason: str) -> Callable[[Request], Awaitable[Response]]:
        """Returns a handler that refuses."""

        async def refuse(request: Request) -> Response:
            await self.owner(request)
            raise RequestError(reason, status=404, code="not_served")

        return refuse


async def load_base(server: ArtServer, base_model: str) -> str:
    """Returns what to ask for as `model`. Raises RequestError for a base model that cannot be loaded.

    The client asks again for minutes after a status of 500, which does not help a name that is wrong.
    """
    try:
        return await server.load_base(base_model)
    except (AuthenticationError, OverloadedError, ServerUnreachableError):
        raise
    except ARTError as error:
        raise refusal(str(error), param="base_model") from error


def future(request_id: str, **more: Any) -> Response:
    return JSONResponse({"request_id": request_id, **more})


def pending(request_id: str) -> Response:
    return JSONResponse({"type": "try_again", "request_id": request_id, "queue_state": "active"})


def ended(result: bytes, *, protobuf: bool) -> Response:
    return Response(result, media_type=PROTOBUF if protobuf else "application/json")


def text_of(asked: Asked) -> bytes:
    return asked.model_dump_json().encode()


async def tokenizer_of(base_model: str) -> str:
    """The folder or name that `AutoTokenizer` loads a base model's tokenizer from."""
    source = (await with_folder(resolve_base(base_model), lambda _: None)).source
    # The client takes the last part of a name with two slashes for a variant.
    return f"{source}/" if source.startswith("/") and source.count("/") == 2 else source


def _paths(routes: TinkerRoutes) -> list[Route]:
    posts: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "client/config": routes.client_config,
        "client/dynamic_config": routes.dynamic_config,
        "telemetry": routes.telemetry,
        "create_session": routes.create_session,
        "session_heartbeat": routes.heartbeat,
        "sessions/{session_id}/finish": routes.finish,
        "create_model": routes.create_model,
        "create_custom_loss": routes.create_custom_loss,
        "forward": routes.forward,
        "forward_backward": routes.forward_backward,
        "unload_model": routes.unload_model,
        "optim_step": routes.queued("optim_step", OptimStep),
        "save_weights": routes.queued("save_weights", SaveWeights),
        "save_weights_for_sampler": routes.queued("save_weights_for_sampler", SaveForSampler),
        "save_weights_external": routes.queued("save_weights_external", SaveExternal),
        "copy_weights": routes.copy_weights,
        "load_weights": routes.load_weights,
        "get_info": routes.get_info,
        "create_sampling_session": routes.create_sampling_session,
        "join_sampling_session": routes.join_sampling_session,
        "asample": routes.asample,
        "retrieve_future": routes.retrieve_future,
        "retrieve_futures": routes.retrieve_futures,
        "cancel_future": routes.cancel_future,
    }
    gets: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "healthz": routes.healthz,
        "get_server_capabilities": routes.capabilities,
        "samplers/{sampler_id}": routes.get_sampler,
    }

    return [
        *(Route(f"/api/v1/{path}", handler, methods=["POST"]) for path, handler in posts.items()),
        *(Route(f"/api/v1/{path}", handler, methods=["GET"]) for path, handler in gets.items()),
    ]


def make_app(routes: TinkerRoutes) -> Starlette:
    """The application. It owns the store, the runs and the sessions: they end with it."""

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        await routes.sessions.start()
        await routes.runs.resume()
        lost = await routes.store.run(lambda tables: tables.select(OpenSample))
        routes.samples.tell_lost([one.request_id for one in lost])
        watch = asyncio.create_task(routes.sessions.watch())
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await routes.runs.close()
            await routes.samples.close()
            routes.store.close()

    return Starlette(
        lifespan=life,
        routes=[
            *_paths(routes),
            *listing_routes(routes.store, routes.owner, routes.keys),
            *external_routes(routes.store, routes.owner, routes.keys),
            *(
                Route(path, routes.refusing(reason), methods=["GET", "POST", "DELETE"])
                for path, reason in REFUSED.items()
            ),
        ],
        exception_handlers={ARTError: tell_error, Exception: tell_defect},
    )


async def tell_error(request: Request, error: Exception) -> Response:
    """An error of ours, in the form that the client raises."""
    status = error.status if isinstance(error, ServerError) else 500
    if isinstance(error, AuthenticationError):
        status = 401
    body = {"detail": str(error), "error": {"message": str(error), "type": type(error).__name__}}
    return JSONResponse(body, status_code=status)


async def tell_defect(request: Request, error: Exception) -> Response:
    """Starlette raises the error again behind this reply, so the log has its traceback."""
    return JSONResponse({"detail": f"internal error: {type(error).__name__}"}, status_code=500)
