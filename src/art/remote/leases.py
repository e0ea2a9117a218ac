"""Steps that are in use: pinned in a context, and not deleted meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from art.backend import AnyModel

Key = tuple[str, str]
"""Project and name."""

_PINNED: ContextVar[Mapping[Key, int]] = ContextVar("pinned steps", default=MappingProxyType({}))


class StepLeases:
    """The leases of one backend."""

    def __init__(self) -> None:
        self._held: Counter[tuple[Key, int]] = Counter()

    @asynccontextmanager
    async def lease(self, model: AnyModel, step: int) -> AsyncIterator[None]:
        """Inside, `pinned` is this step, in this task and those it starts. `with_held` has it."""
        key = model.project, model.name
        token = _PINNED.set({**_PINNED.get(), key: step})
        self._held[key, step] += 1
        try:
            yield
        finally:
            self._held[key, step] -= 1
            _PINNED.reset(token)

    def with_held(self, model: AnyModel, steps: Iterable[int]) -> list[int]:
        """The steps, and those of the model that somebody holds; sorted."""
        mine = {
            step for (key, step), count in self._held.items() if count and key == (model.project, model.name)
        }
        return sorted(mine.union(steps))


def pinned(model: AnyModel) -> int | None:
    """The step that this context is to sample from; None: the newest."""
    return _PINNED.get().get((model.project, model.name))
