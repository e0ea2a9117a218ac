"""The trainer of one base model: a process that is kept alive, and the client that speaks to it
(`art.wire.training`) with a deadline on every call.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from pydantic import ValidationError

from art import errors
from art.engine.base_models import BaseModel
from art.errors import (
    ARTError,
    CheckpointError,
    ConfigurationError,
    ServerError,
    TrainingError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)
from art.process.resources import no_tls
from art.process.worker import RunningWorker, SharedDisk, WorkerDisk, module_command
from art.server.checkpoints.checkpoints import Checkpoints
from art.server.checkpoints.registered_models import Registration
from art.server.data_folder import DataLayout
from art.server.settings import ControlSettings
from art.server.workers.supervisor import WorkerOptions, supervise
from art.wire.records import Strict, first_flaw
from art.wire.training import (
    CloseRequest,
    OpenReply,
    OpenRequest,
    ProbeReply,
    ProbeRequest,
    SaveReply,
    SaveRequest,
    ScoreReply,
    ScoreRequest,
    StepReply,
    StepRequest,
    TokensRequest,
    TrainerConfig,
    TrainEvent,
)

_PROGRESS_SECONDS = 0.2


class TrainerClient:
    """One trainer worker. Times in seconds; `idle` is the longest silence of a running training.

    `trouble` is told when the worker does not answer or its connection breaks. `disk`: how folders come to
    the worker and back. `log`: where the worker's log is, which the error of a defect names.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout: float,
        idle: float,
        trouble: Callable[[WorkerError], None],
        disk: WorkerDisk | None = None,
        log: Path | None = None,
    ) -> None:
        self._log = log
        self._disk = disk or SharedDisk()
        self._trouble = trouble
        self._timeout = timeout
        self._idle = idle
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(timeout, connect=5.0),
            trust_env=False,
            verify=no_tls(),
        )

    async def open(self, request: OpenRequest) -> TrainedModel:
        """Raises CheckpointError, ConfigurationError, WorkerError."""
        if request.checkpoint is not None:
            with self._telling():
                found = await self._disk.fetch(Path(request.checkpoint))
            request = request.model_copy(update={"checkpoint": str(found)})
        reply = OpenReply.model_validate_json(await self._post("/open", request))
        return TrainedModel(self, reply.model, reply.step)

    async def save(self, model: str, path: Path) -> SaveReply:
        """Raises CheckpointError, WorkerError."""
        request = SaveRequest(model=model, path=str(self._disk.place(path)))
        reply = SaveReply.model_validate_json(await self._post("/save", request))
        with self._telling():
            await self._disk.collect(path)
        return reply

    async def close(self, model: str) -> None:
        """Forgets a model; one that is not open is none. Raises WorkerError."""
        await self._post("/close", CloseRequest(model=model))

    async def score(self, model: str, rows: Sequence[Sequence[int]]) -> ScoreReply:
        """Raises WorkerError."""
        request = ScoreRequest(model=model, rows=[list(row) for row in rows])
        return ScoreReply.model_validate_json(await self._post("/score", request))

    async def probe(self, request: ProbeRequest) -> ProbeReply:
        """Raises ConfigurationError (unknown targets), WorkerError."""
        path = Path(request.path)
        elsewhere = request.model_copy(update={"path": str(self._disk.place(path))})
        reply = ProbeReply.model_validate_json(await self._post("/probe", elsewhere))
        if reply.probe is not None:
            with self._telling():
                await self._disk.collect(path)
        return reply

    async def find_reference(self, folder: str | None) -> str | None:
        """Returns where the worker finds the folder of a reference's or teacher's adapter.

        Raises StorageError, WorkerError.
        """
        if folder is None:
            return None
        with self._telling():
            return str(await self._disk.fetch(Path(folder)))

    async def train(self, body: bytes, report: Callable[[int, int], Awaitable[None]]) -> TrainEvent:
        """The result of a batch. `report` is called now and then with the tokens done and their total.

        Raises TrainingError and others by name, WorkerError.
        """
        self._check_open()
        reported_at, timeout = time.monotonic(), httpx.Timeout(self._idle, connect=5.0)
        try:
            async with self._http.stream("POST", "/train", content=body, timeout=timeout) as reply:
                if reply.status_code != 200:
                    raise worker_error(reply.status_code, await reply.aread(), log=self._log)
                async for line in reply.aiter_lines():
                    if not line.strip():
                        continue
                    event = TrainEvent.model_validate_json(line)
                    if event.type == "result":
                        return event
                    if event.type == "error":
                        raise named_error(event.code, event.message, log=self._log)
                    if time.monotonic() - reported_at >= _PROGRESS_SECONDS:
                        reported_at = time.monotonic()
                        await report(event.done, event.total)
        except httpx.TimeoutException as error:
            stalled = WorkerStalledError(f"the trainer made no progress for {self._idle:g} s")
            self._trouble(stalled)
            raise stalled from error
        except httpx.HTTPError as error:
            died = WorkerDiedError(f"the trainer's connection broke in the middle of a step: {error!r}")
            self._trouble(died)
            raise died from error
        raise TrainingError("the trainer ended its answer without a result")

    async def step(self, request: StepRequest) -> StepReply:
        """Moves the weights by the gradients that are held. Raises TrainingError, WorkerError."""
        return StepReply.model_validate_json(await self._post("/step", request))

    async def tokens(self, model: str, step: int, *, timeout: float) -> bytes | None:
        """The record of the loss entries of the batch that started from `step`, as safetensors. None: the
        worker has none, or is of a release that makes none.

        Raises WorkerError. Nobody is told of it: the record is not worth another trainer.
        """
        self._check_open()
        asked = TokensRequest(model=model, step=step).model_dump_json()
        try:
            reply = await self._http.post("/tokens", content=asked, timeout=timeout)
        except httpx.HTTPError as error:
            raise WorkerError(f"the trainer did not hand out the record of tokens: {error!r}") from error
        if reply.status_code == 404:
            return None
        if reply.status_code != 200:
            raise worker_error(reply.status_code, reply.content, log=self._log)
        return reply.content

    async def aclose(self) -> None:
        """Every later call raises WorkerDiedError."""
        await self._http.aclose()

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """A machine that does not hand files over any more is its worker's trouble, too: it is started again
        before anybody tries anew.
        """
        try:
            yield
        except (WorkerDiedError, WorkerStalledError) as error:
            self._trouble(error)
            raise

    def _check_open(self) -> None:
        if self._http.is_closed:
            raise WorkerDiedError("the trainer was started again; what it held is to be opened anew")

    async def _post(self, route: str, request: Strict) -> bytes:
        self._check_open()
        try:
            reply = await self._http.post(route, content=request.model_dump_json())
        except httpx.TimeoutException as error:
            stalled = WorkerStalledError(f"the trainer did not answer {route} within {self._timeout:g} s")
            self._trouble(stalled)
            raise stalled from error
        except httpx.HTTPError as error:
            died = WorkerDiedError(f"the trainer's connection broke at {route}: {error!r}")
            self._trouble(died)
            raise died from error
        if reply.status_code != 200:
            raise worker_error(reply.status_code, reply.content, log=self._log)
        return reply.content


class TrainedModel:
    """A model that one trainer process holds. After that process is gone, every call raises
    WorkerDiedError.
    """

    def __init__(self, trainer: TrainerClient, model: str, step: int) -> None:
        self.trainer = trainer
        self.model = model
        self.step = step
        """The committed step that it was opened at, or has reached."""

    async def save(self, path: Path) -> None:
        """Write what it holds into a folder that must not exist. Raises CheckpointError, WorkerError."""
        await self.trainer.save(self.model, path)

    async def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Logprob of each id given those before it: `len(row) - 1` numbers a row."""
        return (await self.trainer.score(self.model, rows)).logprobs

    def is_open_in(self, trainer: TrainerClient) -> bool:
        return self.trainer is trainer


def worker_error(status: int, body: bytes, *, log: Path | None = None) -> ARTError:
    """The named error in a worker's reply."""
    try:
        reply = json.loads(body)
    except ValueError:
        reply = {}
    if isinstance(reply, dict) and isinstance(reply.get("error"), dict):
        reply = reply["error"]
    message = str(reply.get("message") or body[:300].decode(errors="replace"))
    name = reply.get("kind") or reply.get("type") or reply.get("code") or ""
    return named_error(str(name), message, status=status, log=log)


def named_error(name: str, message: str, *, status: int = 500, log: Path | None = None) -> ARTError:
    """The exception of that class name.

    A name that is none of ours is a defect of the worker: a TrainingError that says where its traceback is.
    """
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, ARTError)):
        what = ": ".join(part for part in (name, message) if part)
        return TrainingError(f"the trainer failed ({what}); the traceback is in {log or 'its log'}")
    if issubclass(kind, ServerError):
        return kind(message, status=status)
    return kind(message)


_OURS = frozenset({"base_model", "model_path", "bits", "key", "host", "port", "gang"})
TRAINER_MODULE = "art.training.worker"


class TrainerWorker:
    """The supervised trainer. After a restart it opens models anew."""

    def __init__(
        self, base: BaseModel, *, options: WorkerOptions, layout: DataLayout, settings: ControlSettings
    ) -> None:
        self._base = base
        self.ranks = options.ranks
        self._settings = settings
        self._client: TrainerClient | None = None
        self._open: dict[str, TrainedModel] = {}
        self.supervisor = supervise(
            f"trainer-{base.label}",
            options.trainer_launch(settings.train_idle),
            command=module_command(TRAINER_MODULE),
            config=_trainer_config(base, options.trainer_options),
            layout=layout,
            settings=settings,
            when_up=self._connect,
        )

    async def close(self) -> None:
        """End it."""
        await self.supervisor.close()
        if self._client is not None:
            await self._client.aclose()
        self._client = None

    async def client(self) -> TrainerClient:
        """The trainer, once it is up. Raises WorkerError, DeadlineError."""
        await self.supervisor.worker(self._settings.start)
        if self._client is None:
            raise WorkerDiedError(f"the trainer of {self._base.name} is closed")
        return self._client

    async def worker_info(self) -> Mapping[str, Any]:
        """Returns the data of its health route: device, dtype, open models."""
        worker = await self.supervisor.worker(self._settings.start)
        return await worker.probe()

    async def open(self, model: Registration, checkpoints: Checkpoints) -> TrainedModel:
        """Opens the model at its newest checkpoint (or fresh).

        Raises CheckpointError when that checkpoint is unfit: an older one is never used silently.
        """
        trainer, newest = await self.client(), checkpoints.newest()
        opened_before = self._open.get(model.key)
        if opened_before is not None and opened_before.is_open_in(trainer) and opened_before.step == newest:
            return opened_before
        self.invalidate(model)
        path = None if newest is None else str(checkpoints.path(newest))
        request = OpenRequest(model=model.key, lora=model.lora, checkpoint=path, seed=model.seed)
        try:
            opened = await trainer.open(request)
        except CheckpointError as error:
            raise CheckpointError(
                f"the newest checkpoint of {model.key} cannot be used: {error} Restore {path}, or "
                f"remove that "
                "folder to train on from the step before it"
            ) from error
        if newest is not None and opened.step != newest:
            raise CheckpointError(
                f"checkpoint {path} says it is step {opened.step}; the folder must hold step {newest}"
            )
        self._open[model.key] = opened
        return opened

    def invalidate(self, model: Registration) -> None:
        """Marks a model's state as outdated, so that the next `open` reads its newest checkpoint."""
        self._open.pop(model.key, None)

    async def _connect(self, worker: RunningWorker) -> None:
        before = self._client
        self._open.clear()
        self._client = TrainerClient(
            worker.url,
            worker.key,
            timeout=self._settings.call,
            idle=self._settings.train_idle,
            trouble=lambda error: self.supervisor.report(worker, error),
            disk=worker.disk,
            log=self.supervisor.spec.log_path,
        )
        if before is not None:
            await before.aclose()


def _trainer_config(base: BaseModel, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer's start line without its key. Raises ConfigurationError that lists the known options."""
    known = [name for name in TrainerConfig.model_fields if name not in _OURS]
    try:
        if unknown := [name for name in settings if name not in known]:
            raise ConfigurationError(f"unknown trainer option {unknown[0]!r}; known: {', '.join(known)}")
        config = TrainerConfig(
            base_model=base.name, model_path=base.source, bits=base.bits, key="-" * 16, **settings
        )
    except ValidationError as error:
        raise ConfigurationError(f"trainer option {first_flaw(error)}; known: {', '.join(known)}") from error
    return config.model_dump(mode="json", exclude={"key"})
