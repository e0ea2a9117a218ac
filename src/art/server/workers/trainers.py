"""The trainer of one base model: a process that is kept alive, and what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from art.errors import CheckpointError, ConfigurationError, WorkerDiedError
from art.server.checkpoints.checkpoints import Checkpoints
from art.server.control_settings import ControlSettings
from art.server.data_layout import DataLayout
from art.server.models.base_models import BaseModel
from art.server.models.models import Registration
from art.server.workers.options import PairOptions
from art.server.workers.supervised import supervise
from art.server.workers.trainer_client import OpenModel, TrainerClient
from art.server.workers.workers import Worker
from art.wire.flaws import first_flaw
from art.wire.trainer_start import TrainerConfig
from art.wire.training import OpenRequest

_OURS = frozenset({"base_model", "model_path", "key", "host", "port"})
TRAINER_MODULE = "art.training.worker"


class Trainers:
    """The supervised trainer. After a restart it opens models anew."""

    def __init__(
        self, base: BaseModel, *, options: PairOptions, layout: DataLayout, settings: ControlSettings
    ) -> None:
        self._base = base
        self._settings = settings
        self._client: TrainerClient | None = None
        self._open: dict[str, OpenModel] = {}
        self.supervisor = supervise(
            f"trainer-{base.label}",
            TRAINER_MODULE,
            _trainer_config(base, options.trainer_options),
            layout=layout,
            settings=settings,
            when_up=self._up,
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

    async def told(self) -> Mapping[str, Any]:
        """What its health route says: device, dtype, open models."""
        worker = await self.supervisor.worker(self._settings.start)
        return await worker.probe()

    async def open(self, model: Registration, checkpoints: Checkpoints) -> OpenModel:
        """Have it hold the model at its newest checkpoint (or fresh).

        Raises CheckpointError when that checkpoint is unfit: an older one is never used silently.
        """
        trainer, newest = await self.client(), checkpoints.newest()
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
        """What it holds of a model is not its newest checkpoint: have the next `open` read that."""
        self._open.pop(model.key, None)

    async def _up(self, worker: Worker) -> None:
        before = self._client
        self._open.clear()
        self._client = TrainerClient(
            worker.url,
            worker.key,
            timeout=self._settings.call,
            idle=self._settings.train_idle,
            trouble=lambda error: self.supervisor.report(worker, error),
        )
        if before is not None:
            await before.aclose()


def _trainer_config(base: BaseModel, given: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer's start line without its key. Raises ConfigurationError that lists the known options."""
    known = [name for name in TrainerConfig.model_fields if name not in _OURS]
    try:
        if unknown := [name for name in given if name not in known]:
            raise ConfigurationError(f"unknown trainer option {unknown[0]!r}; known: {', '.join(known)}")
        config = TrainerConfig(base_model=base.name, model_path=base.source, key="-" * 16, **given)
    except ValidationError as error:
        raise ConfigurationError(f"trainer option {first_flaw(error)}; known: {', '.join(known)}") from error
    return config.model_dump(mode="json", exclude={"key"})
