"""Training runs: the requests of each are carried out in the order of their numbers, once, whatever dies.

A request is on disk before it is acknowledged. A batch's body stays until the step that it is part of is on
disk: where the server lost the gradients (it, or its trainer, was started again), the batches since the last
step are sent again, from the first. A step is named after its request, so it is made once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from art.batch.encode import encode_arrays
from art.errors import (
    ARTError,
    NotFoundError,
    RequestError,
)
from art.wire.gradients import GRADIENTS_LOST, MakeStepRequest
from art.wire.training import GradientUse, LoraSpec, OptimizerSpec, TrainRequest
from art_extensions.tinker.art_server import ArtServer
from art_extensions.tinker.batches import LossBatch, loss_batch, per_datum
from art_extensions.tinker.custom_loss.custom_batches import (
    compute_loss,
    gradient_call,
    inputs_of,
    scoring_call,
)
from art_extensions.tinker.custom_loss.loss_graph import CreateCustomLoss
from art_extensions.tinker.forward_backward import (
    LOSS_ID,
    ForwardBackwardCall,
    forward_backward_output,
    read_forward_backward,
)
from art_extensions.tinker.leftovers import Leftovers, leave
from art_extensions.tinker.loss_functions import CUSTOM
from art_extensions.tinker.older_clients import JSON_BATCH
from art_extensions.tinker.records import (
    Asked,
    LoadWeights,
    LoraAsked,
    OptimStep,
    SaveExternal,
    SaveForSampler,
    SaveWeights,
)
from art_extensions.tinker.refusals import failure_of, refusal
from art_extensions.tinker.run_records import MakeRecords
from art_extensions.tinker.run_settings import adam_of
from art_extensions.tinker.saved_weights import (
    EXTERNAL,
    adapter_files,
    keep_saved_steps,
    save_path,
    stored_until,
)
from art_extensions.tinker.store import (
    COPY,
    UNLOADED,
    KeptLoss,
    QueuedRequest,
    Run,
    Sampler,
    SavedCheckpoint,
    Tables,
    TinkerSession,
    TinkerStore,
    now,
)
from art_extensions.tinker.weights_sources import find_source

_log = logging.getLogger(__name__)

LARGEST_BATCH = 64 * 1024 * 1024
"""Bytes of a decompressed batch."""
UNCLIPPED = 1e30
"""A gradient norm that is never reached."""
_NEVER = MappingProxyType({COPY: "is a copy", UNLOADED: "was unloaded"})
"""The number of a run's next request, where none is ever carried out."""
_ENDED = "the session has ended"
_PLACE = OptimizerSpec(learning_rate=None)
"""A batch that moves nothing has to name an optimizer."""

Answered = tuple[Mapping[str, Any], dict[str, float]]
"""The columns of a batch's entries, and its metrics."""
SendBatch = Callable[[LossBatch, GradientUse], Awaitable[Answered]]
ServerOf = Callable[[str], Awaitable[ArtServer]]
"""The server for an owner; waits until the owner's key is known."""
A = TypeVar("A", bound=Asked)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """The outcome of a request: its result, and what it changes in one transaction."""

    result: bytes
    change: Callable[[Tables], object] = lambda tables: None
    run: Mapping[str, Any] = field(default_factory=dict)
    """New values of the run's fields."""
    added: bool = False


class TrainingRuns:
    """The queue of each run."""

    def __init__(
        self, store: TinkerStore, server_of: ServerOf, leftovers: Leftovers, make_records: MakeRecords
    ) -> None:
        self._store, self._server_of, self.leftovers = store, server_of, leftovers
        self._workers: dict[str, asyncio.Task[None]] = {}
        """One for each run that has something to do."""
        self._arrivals: set[str] = set()
        """The runs that a request came to since their worker looked."""
        self._ends: dict[str, asyncio.Event] = {}
        """One for each request that somebody waits for."""
        self._records = make_records(store, _call_of)
        self._contexts: dict[str, int] = {}
        """Tokens that the base models have room for, by name."""
        self._carry_out: Mapping[str, Callable[[Run, QueuedRequest], Awaitable[Done]]] = {
            "create_model": self._create,
            "load_new": self._load_new,
            "load_weights": self._load,
            "forward_backward": self._gradient,
            JSON_BATCH: self._gradient,
            "optim_step": self._step,
            "save_weights": self._save,
            "save_weights_for_sampler": self._save_for_sampler,
            "save_weights_external": self._save_external,
        }

    async def resume(self) -> None:
        """Goes on with what an earlier process left: with the ends of sessions, too."""

        def begin(tables: Tables) -> set[str]:
            for run_id in tables.waiting_runs(ended=True):
                _give_up(tables, run_id, _ENDED)
            return tables.waiting_runs(ended=False)

        for run_id in await self._store.run(begin):
            self._wake(run_id)

    async def submit(self, request: QueuedRequest, run: Run | None = None) -> str:
        """Writes a request down, with the run that it begins. The same number again is the same request.

        Raises NotFoundError for a run that is not there, RequestError for one whose session has ended and for
        a copy of weights, which is never trained.
        """

        def write(tables: Tables) -> None:
            if run is not None:
                tables.add(run)
            known = find_run(tables, request.run_id, request.owner)
            if known.next_seq in _NEVER:
                how = _NEVER[known.next_seq]
                raise refusal(f"{known.run_id} {how}: create a training client from its weights")
            require_open(tables, known.session_id, request.owner)
            tables.add(request)
            tables.change(Run, {"run_id": request.run_id}, used_at=now())

        await self._store.run(write)
        self._wake(request.run_id)
        return request.request_id

    async def retrieve(self, owner: str, request_id: str, seconds: float) -> QueuedRequest | None:
        """The request when it has ended; None where it has not within so many seconds.

        Raises NotFoundError.
        """
        end = self._ends.setdefault(request_id, asyncio.Event())
        found = await self._store.run(
            lambda tables: tables.find(QueuedRequest, without="body", request_id=request_id, owner=owner)
        )
        if found is not None and found.state == "waiting":
            try:
                async with asyncio.timeout(seconds):
                    await end.wait()
            except TimeoutError:
                return None
            return await self.retrieve(owner, request_id, 0.0)
        self._tell_end(request_id)
        if found is None:
            raise NotFoundError(f"no request {request_id!r} of this key", status=404)
        return found

    async def end_session(self, session_id: str) -> None:
        """Stops the runs of an ended session."""
        for run in await self._store.run(lambda tables: tables.select(Run, session_id=session_id)):
            await self._end(run, _ENDED)

    async def free_session(self, session_id: str) -> None:
        """Frees what the runs of an ended session hold. Saved weights stay."""
        for run in await self._store.run(lambda tables: tables.select(Run, session_id=session_id)):
            await self.leftovers.free(model=run.name)

    async def unload(self, run: Run) -> str:
        """Frees what a run holds before its session ends; it takes no further request. Returns the request
        that has the outcome, also of a run that was unloaded already.
        """
        name = f"{run.run_id}:unload"
        done = QueuedRequest(
            request_id=name,
            owner=run.owner,
            run_id=run.run_id,
            seq=UNLOADED,
            kind="unload_model",
            body=None,
            state="done",
            result=_json(model_id=run.run_id, type="unload_model"),
            created_at=now(),
        )

        def write(tables: Tables) -> None:
            tables.change(Run, {"run_id": run.run_id}, next_seq=UNLOADED)
            if tables.find(QueuedRequest, request_id=name) is None:
                tables.add(done)

        await self._end(run, "the run was unloaded")
        await self._store.run(write)
        await self.leftovers.free(model=run.name)
        return name

    async def _end(self, run: Run, why: str) -> None:
        if (worker := self._workers.pop(run.run_id, None)) is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        self._arrivals.discard(run.run_id)
        self._records.forget(run.run_id)
        await self._store.run(partial(_give_up, run_id=run.run_id, why=why))
        for request_id in [one for one in self._ends if one.startswith(f"{run.run_id}:")]:
            self._tell_end(request_id)

    async def close(self) -> None:
        """Stops. What is not done goes on with the next process."""
        for worker in self._workers.values():
            worker.cancel()
        await asyncio.gather(*self._workers.values(), return_exceptions=True)
        await asyncio.to_thread(self._records.close)

    def _wake(self, run_id: str) -> None:
        self._arrivals.add(run_id)
        worker = self._workers.get(run_id)
        if worker is None or worker.done():
            self._workers[run_id] = asyncio.create_task(self._work(run_id), name=f"tinker {run_id}")

    async def _work(self, run_id: str) -> None:
        """Carries out a run's requests, the next number first; until there is none."""
        while run_id in self._arrivals:
            self._arrivals.discard(run_id)
            run, request = await self._store.run(lambda tables: _next(tables, run_id))
            if request is None:
                continue
            self._arrivals.add(run_id)
            try:
                done = await self._carry_out[request.kind](run, request)
                state = "done"
            except ARTError as error:
                _log.warning("%s of %s failed: %s", request.kind, request.request_id, error)
                done, state = Done(result=failure_of(error)), "failed"
            except Exception as error:  # noqa: BLE001  a defect ends this request, not the run
                _log.exception("%s of %s met a defect", request.kind, request.request_id)
                done, state = Done(result=failure_of(error)), "failed"
            await self._store.run(partial(_ended, request=request, done=done, state=state))
            self._tell_end(request.request_id)
        self._workers.pop(run_id, None)

    def _tell_end(self, request_id: str) -> None:
        """Has those look again who wait for a request."""
        if (end := self._ends.pop(request_id, None)) is not None:
            end.set()

    async def _create(self, run: Run, request: QueuedRequest) -> Done:
        server, lora = await self._server_of(run.owner), LoraSpec.model_validate(run.lora)
        seed = _read(LoraAsked, request).seed
        await server.register(run.name, run.base_model, lora, _seed(run) if seed is None else seed)
        return Done(result=_json(model_id=run.run_id, type="create_model"))

    async def _load_new(self, run: Run, request: QueuedRequest) -> Done:
        """A run that begins with saved weights."""
        return await self._begin_with(run, run.name, request)

    async def _load(self, run: Run, request: QueuedRequest) -> Done:
        """A run that goes on with saved weights: a new model takes the place of its own."""
        done = await self._begin_with(run, f"{run.name}.{request.seq}", request)

        def change(tables: Tables) -> None:
            tables.forget_bodies(run.run_id, request.seq)
            leave(tables, run)  # the model that trained it so far

        return replace(done, change=change)

    async def _begin_with(self, run: Run, name: str, request: QueuedRequest) -> Done:
        asked = _read(LoadWeights, request)
        _refuse_foreign(asked)
        server = await self._server_of(run.owner)
        source = await find_source(self._store, server, asked.path, run.owner)
        lora = LoraSpec.model_validate(source.lora or run.lora)
        await server.fork(name, source.project, source.model, source.step, weights_only=not asked.optimizer)
        base = asked.base_model or source.base_model or run.base_model
        info = await server.register(name, base, lora, _seed(run))
        changed = {"name": name, "base_model": base, "step": info.step, "lora": lora.model_dump()}
        return Done(result=_json(model_id=run.run_id, path=source.path, type="load_weights"), run=changed)

    async def _gradient(self, run: Run, request: QueuedRequest) -> Done:
        call = await asyncio.to_thread(_call_of, request)
        await self._check_lengths(run, call)
        use: GradientUse = "none" if call.forward_only else "add"
        earlier = await self._store.run(lambda tables: _added(tables, run.run_id))
        batch, own = await self._batch_of(run, call, partial(self._send, run, earlier))
        columns, metrics = await self._send(run, earlier, batch, use)
        found = await asyncio.to_thread(per_datum, batch, columns["logprob"])
        reported = {
            "loss:sum": metrics["loss/train"],
            "forwarded_tokens:sum": metrics["data/forwarded_tokens"],
            "loss_tokens:sum": metrics["data/step_trainer_tokens"],
            **own,
        }
        result = await asyncio.to_thread(forward_backward_output, call, found, reported)
        return Done(result=result, added=use == "add")

    async def _batch_of(
        self, run: Run, call: ForwardBackwardCall, send: SendBatch
    ) -> tuple[LossBatch, Mapping[str, float]]:
        """The batch of a call, and its metrics where they are known before its gradient: those of a custom
        loss, which is computed here, of logprobs that the trainer is asked for first.
        """
        if call.loss_fn != CUSTOM:
            return await asyncio.to_thread(loss_batch, call), {}
        loss_id = call.config[LOSS_ID]
        where: dict[str, Any] = {"loss_id": loss_id, "session_id": run.session_id, "owner": run.owner}
        kept = await self._store.run(lambda tables: tables.find(KeptLoss, **where))
        if kept is None:
            raise refusal(f"no loss {loss_id!r} of this session: create it", param="loss_fn_config")
        loss = CreateCustomLoss.model_validate_json(kept.body)
        inputs = inputs_of(call, loss)
        batch = await asyncio.to_thread(loss_batch, scoring_call(call))
        columns, _ = await send(batch, "none")
        value = await asyncio.to_thread(compute_loss, loss, per_datum(batch, columns["logprob"]), inputs)
        batch = await asyncio.to_thread(loss_batch, gradient_call(call, value.slopes))
        return batch, {"loss:sum": value.loss, **value.metrics}

    async def _check_lengths(self, run: Run, call: ForwardBackwardCall) -> None:
        """Raises RequestError for a datum longer than the base model's context."""
        if run.base_model not in self._contexts:
            served = await (await self._server_of(run.owner)).served()
            self._contexts |= {name: room for name, room in served.items() if room is not None}
        room = self._contexts.get(run.base_model)
        for number, datum in enumerate(call.data):
            if room is not None and len(datum.input_ids) > room:
                raise refusal(
                    f"data[{number}] has {len(datum.input_ids)} tokens; the context of {run.base_model} has "
                    f"room for {room}",
                    param=f"data[{number}].model_input",
                )

    async def _send(
        self, run: Run, earlier: Sequence[QueuedRequest], batch: LossBatch, use: GradientUse
    ) -> tuple[Mapping[str, Any], dict[str, float]]:
        server = await self._server_of(run.owner)
        body = await asyncio.to_thread(_body_of, batch, run.step, len(earlier), use)
        return await self._counting_on(run, earlier, lambda: server.gradients(run.name, body))

    async def _counting_on(
        self, run: Run, earlier: Sequence[QueuedRequest], ask: Callable[[], Awaitable[T]]
    ) -> T:
        """Asks for what counts on earlier gradients. Where those are lost, their batches are sent first."""
        try:
            return await ask()
        except RequestError as error:
            if error.code != GRADIENTS_LOST or not earlier:
                raise
        await self._send_again(run, earlier)
        return await ask()

    async def _send_again(self, run: Run, earlier: Sequence[QueuedRequest]) -> None:
        _log.warning("run %s: %d batches since step %d are sent again", run.run_id, len(earlier), run.step)
        server = await self._server_of(run.owner)
        for number, one in enumerate(earlier):

            async def send(batch: LossBatch, use: GradientUse, number: int = number) -> Answered:
                body = await asyncio.to_thread(_body_of, batch, run.step, number, use)
                return await server.gradients(run.name, body)

            whole = await self._store.run(partial(Tables.find, kind=QueuedRequest, request_id=one.request_id))
            batch, _ = await self._batch_of(run, await asyncio.to_thread(_call_of, whole or one), send)
            await send(batch, "add")

    async def _step(self, run: Run, request: QueuedRequest) -> Done:
        adam = adam_of(_read(OptimStep, request))
        earlier, kept = await self._store.run(
            lambda tables: (_added(tables, run.run_id), keep_saved_steps(tables, run.name))
        )
        asked = MakeStepRequest(
            job_id=f"tinker:{run.run_id}:{request.seq}",
            expected_step=run.step,
            batches=len(earlier),
            optimizer=OptimizerSpec(
                learning_rate=None,
                betas=(adam.beta1, adam.beta2),
                eps=adam.eps,
                weight_decay=adam.weight_decay,
                max_grad_norm=adam.grad_clip_norm or UNCLIPPED,
            ),
            rate=adam.learning_rate,
            keep_steps=kept,
        )
        server = await self._server_of(run.owner)
        made = await self._counting_on(run, earlier, lambda: server.step(run.name, asked))
        await self._records.record(run, made, request.seq, earlier)
        norm = made.metrics["loss/grad_norm"]
        return Done(
            result=_json(metrics={"unclipped_grad_l2:mean": norm, "learning_rate:mean": adam.learning_rate}),
            change=lambda tables: tables.forget_bodies(run.run_id, request.seq),
            run={"step": made.step},
        )

    async def _save(self, run: Run, request: QueuedRequest) -> Done:
        asked = _read(SaveWeights, request)
        saved = self._saved(
            run, "weights", asked.path or f"{request.seq:06d}", asked.ttl_seconds, asked.user_metadata
        )
        taken = await self._store.run(lambda tables: tables.find(SavedCheckpoint, path=saved.path))
        if taken is not None and not asked.overwrite:
            raise refusal(f"{saved.path} is there already: say overwrite=True, or use another name")

        return Done(result=_json(path=saved.path, type="save_weights"), change=partial(_replace, saved=saved))

    async def _save_for_sampler(self, run: Run, request: QueuedRequest) -> Done:
        asked = _read(SaveForSampler, request)
        if asked.kind != "snapshot":
            raise refusal(f"kind {asked.kind!r} is not supported: this server saves snapshots")
        model = await (await self._server_of(run.owner)).serve(run.name, run.step)
        if asked.path is None:
            sampler = Sampler(
                sampler_id=f"{run.session_id}:sample:{asked.sampling_session_seq_id or 0}",
                owner=run.owner,
                session_id=run.session_id,
                base_model=run.base_model,
                path=None,
                model=model,
                step=run.step,
                created_at=now(),
            )
            result = _json(sampling_session_id=sampler.sampler_id, type="save_weights_for_sampler")
            return Done(result=result, change=lambda tables: tables.add(sampler))
        saved = self._saved(run, "sampler_weights", asked.path, asked.ttl_seconds, asked.user_metadata)

        return Done(
            result=_json(path=saved.path, type="save_weights_for_sampler"),
            change=partial(_replace, saved=saved),
        )

    async def _save_external(self, run: Run, request: QueuedRequest) -> Done:
        """The adapter's files, as PEFT has them: they are there from the step on."""
        asked = _read(SaveExternal, request)
        if asked.age_encryption_recipients:
            raise refusal("age_encryption_recipients is not supported: this server encrypts no files")
        saved = self._saved(run, EXTERNAL, asked.path, asked.ttl_seconds, None)
        server = await self._server_of(run.owner)
        await server.serve(run.name, run.step)
        manifest = await server.files(run.name, run.step)
        size = sum(adapter_files(manifest).values())

        return Done(
            result=_json(path=saved.path, size_bytes=size, type="save_weights_external"),
            change=partial(_replace, saved=saved),
        )

    @staticmethod
    def _saved(
        run: Run, kind: str, name: str, ttl_seconds: int | None, metadata: Mapping[str, str] | None
    ) -> SavedCheckpoint:
        return SavedCheckpoint(
            path=save_path(run.run_id, kind, name),
            owner=run.owner,
            run_id=run.run_id,
            kind=kind,
            name=name,
            model=run.name,
            step=run.step,
            created_at=now(),
            expires_at=stored_until(ttl_seconds),
            metadata=metadata or {},
        )


def find_session(tables: Tables, session_id: str, owner: str) -> TinkerSession:
    """The session of an owner. Raises NotFoundError."""
    found = tables.find(TinkerSession, session_id=session_id, owner=owner)
    if found is None:
        raise NotFoundError(f"no session {session_id!r} of this key", status=404)
    return found


def find_run(tables: Tables, run_id: str, owner: str) -> Run:
    """The run of an owner. Raises NotFoundError."""
    found = tables.find(Run, run_id=run_id, owner=owner)
    if found is None:
        raise NotFoundError(f"no training run {run_id!r} of this key", status=404)
    return found


def require_open(tables: Tables, session_id: str, owner: str) -> TinkerSession:
    """The session of an owner. Raises NotFoundError, RequestError where it has ended.

    The client would ask again for minutes after a 409, so the status is 400.
    """
    session = find_session(tables, session_id, owner)
    if session.ended is not None:
        raise refusal(f"session {session_id!r} has ended ({session.ended}): begin a new one")
    return session


def _next(tables: Tables, run_id: str) -> tuple[Run, QueuedRequest | None]:
    run = tables.find(Run, run_id=run_id)
    if run is None:
        raise NotFoundError(f"no training run {run_id!r}", status=404)
    return run, tables.find(QueuedRequest, run_id=run_id, seq=run.next_seq, state="waiting")


def _ended(tables: Tables, request: QueuedRequest, done: Done, state: str) -> None:
    done.change(tables)
    tables.change(
        QueuedRequest, {"request_id": request.request_id}, state=state, result=done.result, added=done.added
    )
    if not done.added:
        tables.change(QueuedRequest, {"request_id": request.request_id}, body=None)
    tables.change(Run, {"run_id": request.run_id}, next_seq=request.seq + 1, **done.run)


def _replace(tables: Tables, saved: SavedCheckpoint) -> None:
    tables.delete(SavedCheckpoint, path=saved.path)
    tables.add(saved)


def _give_up(tables: Tables, run_id: str, why: str) -> None:
    """Ends the waiting requests of a run. What its requests made until here is to be freed."""
    leave(tables, *tables.select(Run, run_id=run_id))
    failed = failure_of(refusal(why))
    tables.change(QueuedRequest, {"run_id": run_id, "state": "waiting"}, state="failed", result=failed)
    tables.change(QueuedRequest, {"run_id": run_id}, body=None, added=False)


def _added(tables: Tables, run_id: str) -> list[QueuedRequest]:
    """The requests whose gradients the trainer holds, in order, without their bodies."""
    return tables.select(QueuedRequest, order="seq", without="body", run_id=run_id, added=True)


def _call_of(request: QueuedRequest) -> ForwardBackwardCall:
    """The checked call of a stored body: its encoding, a zero byte, the bytes as they came."""
    encoding, _, body = (request.body or b"").partition(b"\0")
    return read_forward_backward(
        body,
        content_type="application/x-protobuf",
        content_encoding=encoding.decode() or None,
        largest=LARGEST_BATCH,
    )


def _body_of(batch: LossBatch, step: int, update: int, use: GradientUse) -> bytes:
    request = TrainRequest(
        model="-",  # the server's to say
        step=step,
        update=update,
        gradient=use,
        algorithm=batch.algorithm,
        optimizer=_PLACE,
        normalizer=batch.normalizer,
    )
    return encode_arrays(batch.tree, batch.entries, request)


def _read(kind: type[A], request: QueuedRequest) -> A:
    return kind.model_validate_json(request.body or b"{}")


def _refuse_foreign(asked: LoadWeights) -> None:
    """Raises RequestError for what loading cannot do here."""
    if asked.weights_access_token is not None:
        raise refusal("weights_access_token is not supported: publish the weights, or use their own key")
    if asked.optimizer_config is not None and asked.optimizer_config.type != "adamw":
        raise refusal(f"optimizer {asked.optimizer_config.type!r} is not supported: this server has AdamW")


def _seed(run: Run) -> int:
    """A seed of the run's own."""
    return zlib.crc32(run.run_id.encode())


def _json(**values: Any) -> bytes:
    return json.dumps(values).encode()
