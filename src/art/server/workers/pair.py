"""The engine and the trainer of one base model, kept alive together and shared by its models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from art.engine.protocol import Engine
from art.engine.registry import engine_kind, engine_options
from art.engine.remote import RemoteEngine
from art.errors import CheckpointError, ConfigurationError, WorkerDiedError, WorkerStalledError
from art.server.checkpoints.checkpoints import Checkpoints
from art.server.control_settings import ControlSettings
from art.server.data_layout import DataLayout
from art.server.models.base_models import BaseModel
from art.server.models.models import Registration
from art.server.workers.supervisor import RestartPolicy, Supervisor
from art.server.workers.trainer_client import OpenModel, TrainerClient
from art.server.workers.workers import Worker, WorkerSpec, module_command
from art.wire.training import OpenRequest, TrainerConfig

_OURS = frozenset({"base_model", "model_path", "key", "host", "port"})
TRAINER_MODULE = "art.training.worker"
Unload = Callable[[], Awaitable[None]]
EngineReplaced = Callable[[Engine, Sequence[str]], None]
"""Told about each restarted engine and the adapters it has loaded."""


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """Which engine, and what both workers are told."""

    engine: str = "builtin"
    engine_options: Mapping[str, Any]
    trainer_options: Mapping[str, Any]


def _trainer_config(base: BaseModel, given: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer's start line without its key. Raises ConfigurationError that lists the known options."""
    known = [name for name in TrainerConfig.model_fields if name not in _OURS]
    try:
        if unknown := [name for name in given if name not in known]:
            raise ConfigurationError(f"unknown trainer option {unknown[0]!r}; known: {', '.join(known)}")
        config = TrainerConfig(base_model=base.name, model_path=base.source, key="-" * 16, **given)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"]))
        raise ConfigurationError(
            f"trainer option {option!r}: {first['msg']}; known: {', '.join(known)}"
        ) from error
    return config.model_dump(mode="json", exclude={"key"})


class _Loaded:
    """One load of an adapter. Its identity tells a late unload that somebody loaded the adapter again."""

    def __init__(self, path: Path) -> None:
        self.path = path


class WorkerPair:
    """Two supervised workers. After a restart the engine has its adapters again; the trainer opens models
    anew.
    """

    def __init__(
        self,
        base: BaseModel,
        *,
        options: PairOptions,
        layout: DataLayout,
        settings: ControlSettings,
        replaced: EngineReplaced,
    ) -> None:
        self.base = base
        self._settings = settings
        self._replaced = replaced
        self._engine: Engine | None = None
        self._dead_engine: Engine | None = None
        self._trainer: TrainerClient | None = None
        self._loaded: dict[str, _Loaded] = {}
        self._open: dict[str, OpenModel] = {}
        self.training = asyncio.Lock()
        """Held by the one job that uses the trainer."""
        checked = engine_options(options.engine, options.engine_options).model_dump(mode="json")
        engine_config = {"base_model": base.source, "options": checked}
        trainer_config = _trainer_config(base, options.trainer_options)
        policy = RestartPolicy(limit=settings.restarts, backoff=settings.restart_wait)

        def supervisor(kind: str, module: str, config: Mapping[str, Any], when_up: Any) -> Supervisor:
            spec = WorkerSpec(
                name=f"{kind}-{base.label}",
                command=module_command(module),
                config=config,
                log_path=layout.log_file(f"{kind}-{base.label}"),
                start_deadline=settings.start,
                stop_deadline=settings.stop,
                health_interval=settings.health_interval,
                health_deadline=settings.health_deadline,
            )
            return Supervisor(spec, when_up=when_up, policy=policy)

        engine_module = engine_kind(options.engine).module
        self.engines = supervisor("engine", engine_module, engine_config, self._engine_up)
        self.trainers = supervisor("trainer", TRAINER_MODULE, trainer_config, self._trainer_up)

    async def start(self) -> None:
        """Start what does not run. When the first start fails, neither worker is left running.

        Raises WorkerError, DeadlineError, ConfigurationError.
        """
        first = self._engine is None
        results = await asyncio.gather(self.engines.start(), self.trainers.start(), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            if first:
                await self.close()
            raise failures[0]

    async def close(self) -> None:
        """End both workers. What they held is forgotten."""
        await asyncio.gather(self.engines.close(), self.trainers.close())
        for engine in (self._engine, self._dead_engine):
            if engine is not None:
                await engine.close()
        if self._trainer is not None:
            await self._trainer.aclose()
        self._engine = self._dead_engine = self._trainer = None

    # -- the engine --

    async def engine(self) -> Engine:
        """The engine, once it is up. Raises WorkerError, DeadlineError."""
        await self.engines.worker(self._settings.start)
        if self._engine is None:
            raise WorkerDiedError(f"the engine of {self.base.name} is closed")
        return self._engine

    async def load(self, adapter: str, path: Path) -> None:
        """Load an adapter, and again after each restart of the engine."""
        async with self._calling_engine(self._settings.call) as engine:
            await engine.load_adapter(adapter, path)
        self._loaded[adapter] = _Loaded(path)

    async def engine_scores(self, adapter: str, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """The engine's logprobs of rows of ids."""
        async with self._calling_engine(self._settings.call) as engine:
            return await engine.score(adapter, rows)

    async def dtypes(self) -> list[str]:
        """What engine and trainer compute in."""
        trainer = await self.trainers.worker(self._settings.start)
        engine = await self.engine()
        return [(await engine.info()).dtype, str((await trainer.probe()).get("dtype"))]

    def unloader(self, adapter: str) -> Unload:
        """What unloads this load of an adapter: nothing happens when it was loaded again meanwhile."""
        token = self._loaded.get(adapter)

        async def unload() -> None:
            if token is None or self._loaded.get(adapter) is not token:
                return
            del self._loaded[adapter]
            async with self._calling_engine(self._settings.drain) as engine:
                await engine.unload_adapter(adapter)

        return unload

    @contextlib.asynccontextmanager
    async def _calling_engine(self, seconds: float) -> AsyncIterator[Engine]:
        """A call with a deadline; an engine that does not keep it is started again."""
        engine, worker = await self.engine(), self.engines.current
        try:
            async with asyncio.timeout(seconds):
                yield engine
        except TimeoutError as error:
            stalled = WorkerStalledError(
                f"the engine of {self.base.name} did not answer within {seconds:g} s"
            )
            self.engines.report(worker, stalled)
            raise stalled from error
        except (WorkerDiedError, WorkerStalledError) as error:
            self.engines.report(worker, error)
            raise

    async def _engine_up(self, worker: Worker) -> None:
        engine: Engine = RemoteEngine(worker.url, worker.key)
        for adapter, loaded in list(self._loaded.items()):
            if (
                not loaded.path.exists()
            ):  # its checkpoint was deleted: it was only waiting for its last request
                del self._loaded[adapter]
                continue
            await engine.load_adapter(adapter, loaded.path)
        before, self._engine = self._engine, engine
        if before is None:
            return
        self._replaced(engine, list(self._loaded))
        # A request that has just been given the dead engine must fail as such, not meet a closed client.
        last, self._dead_engine = self._dead_engine, before
        if last is not None:
            await last.close()

    # -- the trainer --

    async def trainer(self) -> TrainerClient:
        """The trainer, once it is up. Raises WorkerError, DeadlineError."""
        await self.trainers.worker(self._settings.start)
        if self._trainer is None:
            raise WorkerDiedError(f"the trainer of {self.base.name} is closed")
        return self._trainer

    async def open(self, model: Registration, checkpoints: Checkpoints) -> OpenModel:
        """Have the trainer hold the model at its newest checkpoint (or fresh).

        Raises CheckpointError when that checkpoint is unfit: an older one is never used silently.
        """
        trainer, newest = await self.trainer(), checkpoints.newest()
        held = self._open.get(model.key)
        if held is not None and held.held_by(trainer) and held.step == newest:
            return held
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
        """What the trainer holds of a model is not its newest checkpoint: have the next `open` read that."""
        self._open.pop(model.key, None)

    async def settle(self) -> None:
        """Return once both workers are up. Raises WorkerError (given up), DeadlineError."""
        await self.engines.worker(self._settings.start)
        await self.trainers.worker(self._settings.start)

    async def _trainer_up(self, worker: Worker) -> None:
        before = self._trainer
        self._open.clear()
        self._trainer = TrainerClient(
            worker.url,
            worker.key,
            timeout=self._settings.call,
            idle=self._settings.train_idle,
            trouble=lambda error: self.trainers.report(worker, error),
        )
        if before is not None:
            await before.aclose()
