"""The bases and models that a server serves from its start, as its settings name them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence

from art.engine.base_models import BaseModel
from art.errors import ARTError, ConfigurationError, did_you_mean
from art.server.catalog import ExpectedNames
from art.server.checkpoints.registered_models import RegisteredModels, Registration
from art.server.promotion.promote import ServedModels
from art.server.settings import ControlSettings

_log = logging.getLogger(__name__)


def named_models(settings: ControlSettings, models: RegisteredModels) -> list[Registration]:
    """Returns the registered models that the settings name. Raises ConfigurationError for a name of none."""
    known = {model.key: model for model in models.list_models()}
    if not settings.models:
        return list(known.values()) if settings.serve_registered else []
    if unknown := [name for name in settings.models if name not in known]:
        raise ConfigurationError(
            f"{unknown[0]!r} is no model of {models.layout.data_dir}: "
            + (did_you_mean(unknown[0], known) or f"it has {', '.join(known) or 'none'}")
        )
    return [known[name] for name in dict.fromkeys(settings.models)]


class StartupServing:
    """Serves one after the other in the background; requests for those to come wait."""

    def __init__(self, served_models: ServedModels, expected: ExpectedNames) -> None:
        self.unserved: dict[str, str] = {}
        """Why each model or base that was to be served is not, by its name."""
        self._served = served_models
        self._expected = expected
        self._serving: asyncio.Task[None] | None = None

    def begin(self, bases: Sequence[BaseModel], models: Sequence[Registration]) -> None:
        """Start to serve these."""
        for base in bases:
            self._expected.add_base(base.name, *base.aliases)
        for model in models:
            self._expected.add(model.project, model.name)
        self._serving = asyncio.create_task(self._serve(bases, models))

    async def close(self) -> None:
        """End without serving the rest."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)

    async def _serve(self, bases: Sequence[BaseModel], models: Sequence[Registration]) -> None:
        """One that cannot be served keeps no other from it."""
        for base in bases:
            await self._serve_one(base.name, self._served.ensure_base_served(base))
            self._expected.end_base(base.name, *base.aliases)
        for model in models:
            await self._serve_one(model.key, self._served.ensure_served(model))
            self._expected.end(model.project, model.name)

    async def _serve_one(self, name: str, serving: Awaitable[object]) -> None:
        try:
            await serving
            _log.info("%s is served", name)
        except ARTError as error:
            self.unserved[name] = str(error)
            _log.error("%s cannot be served: %s", name, error)
