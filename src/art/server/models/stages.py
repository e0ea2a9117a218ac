"""The stage of each model that is served: opened on first use, kept until the model is deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from art.errors import NotFoundError
from art.server.checkpoints.held import held
from art.server.checkpoints.promote import Stage
from art.server.control_settings import ControlSettings
from art.server.models.base_models import resolve_base
from art.server.models.catalog import Catalog
from art.server.models.models import Models, Registration
from art.server.models.served import Serving
from art.server.tenants.tenancy import tenant_of
from art.server.workers.pairs import WorkerPairs

_GREETING = ({"role": "user", "content": "Hello. Say yes, no or maybe."},)
"""Fixed text: engine and trainer must agree on its ids before a model is served."""


class Stages:
    """All models that are served."""

    def __init__(
        self, models: Models, *, pairs: WorkerPairs, catalog: Catalog, settings: ControlSettings
    ) -> None:
        self._models = models
        self._pairs = pairs
        self._catalog = catalog
        self._settings = settings
        self._stages: dict[str, Stage] = {}
        self._removed: list[Stage] = []
        """Of deleted models: each may still wait for its last requests."""
        self._opening: dict[str, asyncio.Lock] = {}

    async def of(self, model: Registration) -> Stage:
        """The model's stage, its workers up and its newest step served.

        Raises NotFoundError, ConfigurationError, CheckpointError, CanaryError, ParityError, WorkerError.
        """
        async with self.opening(model):
            stage = self._stages.get(model.key)
            if stage is not None:
                return stage
            self._models.get(model.project, model.name)  # it may have been deleted meanwhile
            pair = await self._pairs.of(resolve_base(model.base_model))
            stage = Stage(
                model,
                pair=pair,
                catalog=self._catalog,
                checkpoints=self._models.checkpoints(model),
                settings=self._settings,
            )
            stage.checkpoints.sweep()
            self.serve_as_registered(model)
            async with pair.training:
                rows = await asyncio.to_thread(self.rows, model)
                await pair.require_parity(model.lora, rows[0])
                await stage.bring_up(rows)
            self._stages[model.key] = stage
            return stage

    def opened(self, key: str) -> Stage | None:
        """The stage of `project/name`; None while it is not served."""
        return self._stages.get(key)

    def opening(self, model: Registration) -> asyncio.Lock:
        """Whoever holds it keeps all models on the same base from being opened."""
        return self._opening.setdefault(model.base_model, asyncio.Lock())

    @contextlib.asynccontextmanager
    async def undisturbed(self, model: Registration) -> AsyncIterator[Stage | None]:
        """The model's stage while no job trains it; None while it is not served, nor becomes so."""
        async with held(self.opening(model), self._settings.call, model.key):
            stage = self._stages.get(model.key)
            if stage is None:
                yield None
                return
        async with held(stage.pair.training, self._settings.call, model.key):
            yield stage

    def serve_as_registered(self, model: Registration) -> None:
        """Raises RequestError for a chat format that cannot be told what the registration says."""
        plain = self._catalog.base_of(model.base_model).renderer
        renderer = plain.told(
            model.chat_template_kwargs,
            template=model.chat_template,
            special_tokens_in_text=model.special_tokens_in_text,
        )
        if tenant_of(model.project) is not None:
            renderer = renderer.confined()
        serving = Serving(renderer=renderer, max_context=model.max_context)
        self._catalog.serve_as(model.project, model.name, serving)

    def rows(self, model: Registration) -> list[list[int]]:
        """What engine and trainer must agree on before the model is served."""
        renderer = self._catalog.base_of(model.base_model).renderer
        if tenant_of(model.project) is not None:
            renderer = renderer.confined()
        return [renderer.render(_GREETING, None)]

    async def load_missing(self, project: str, name: str, step: int) -> str:
        """Load an older step, asked for by name. Raises NotFoundError when its checkpoint is gone."""
        stage = await self.of(self._models.get(project, name))
        if step not in stage.checkpoints.steps():
            raise NotFoundError(
                f"model {name!r} has no step {step}; its checkpoints: {stage.checkpoints.steps()}",
                status=404,
                code="model_not_found",
            )
        return await stage.load(step)

    def remove(self, model: Registration) -> None:
        """Serve the model no longer. Requests that use it come to their end."""
        stage = self._stages.pop(model.key, None)
        if stage is not None:
            stage.remove()
            self._removed.append(stage)

    async def close(self) -> None:
        """Stop waiting for the last requests of what was removed."""
        await asyncio.gather(*(stage.close() for stage in [*self._stages.values(), *self._removed]))
