"""The worker pair of each base model: started on first use, its engine served from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from art.engine.protocol import Engine
from art.rendering.chat import ChatRenderer
from art.server.control_settings import ControlSettings
from art.server.counts import WorkerCounts
from art.server.data_layout import DataLayout
from art.server.models.base_models import BaseModel
from art.server.models.catalog import Catalog
from art.server.workers.options import PairOptions
from art.server.workers.pair import WorkerPair


class WorkerPairs:
    """All workers of the server."""

    def __init__(
        self, catalog: Catalog, *, options: PairOptions, layout: DataLayout, settings: ControlSettings
    ) -> None:
        self._catalog = catalog
        self._options = options
        self._layout = layout
        self._settings = settings
        self._pairs: dict[str, WorkerPair] = {}

    async def of(self, base: BaseModel) -> WorkerPair:
        """The workers of a base model, up. Raises WorkerError, DeadlineError, ConfigurationError.

        The caller keeps others from opening the same base.
        """
        pair = self._pairs.get(base.name)
        if pair is not None:
            await pair.start()
            return pair

        def restarted(engine: Engine, adapters: Sequence[str]) -> None:
            if self._catalog.has_base(base.name):
                self._catalog.replace_engine(base.name, engine, adapters=adapters)

        pair = WorkerPair(
            base, options=self._options, layout=self._layout, settings=self._settings, restarted=restarted
        )
        renderer = await asyncio.to_thread(_renderer, base)
        await pair.start()
        info = await pair.engine.info()
        self._catalog.add_base(
            base.name, pair.engine, renderer, max_context=info.max_context, aliases=base.aliases
        )
        self._pairs[base.name] = pair
        return pair

    def health(self) -> dict[str, Any]:
        """The state of the workers of each base model."""
        return {name: pair.health() for name, pair in self._pairs.items()}

    def counts(self) -> list[WorkerCounts]:
        """Each worker."""
        return [row for pair in self._pairs.values() for row in pair.counts()]

    def held(self) -> dict[str, int]:
        """Requests of each base model that wait until an engine of it is up and awake."""
        return {name: pair.engines.pool.held for name, pair in self._pairs.items()}

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(pair.close() for pair in self._pairs.values()))


def _renderer(base: BaseModel) -> ChatRenderer:
    from art.rendering.registry import create_chat_renderer

    return create_chat_renderer(base.source, name=base.name)
