"""The steps that a context samples from instead of the newest ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from art.tracking.folders import stored_name

if TYPE_CHECKING:
    from art.backend import AnyModel


@dataclass(frozen=True, kw_only=True)
class PinnedStep:
    """The step of a model. project: None for any; inference_name: None for `name@step`."""

    names: frozenset[str]
    step: int
    project: str | None = None
    inference_name: str | None = None


_PINNED: ContextVar[tuple[PinnedStep, ...]] = ContextVar("pinned steps", default=())


@contextmanager
def pinned(pin: PinnedStep) -> Iterator[None]:
    """Pins a step inside the block, in this task and those it starts."""
    token = _PINNED.set((*_PINNED.get(), pin))
    try:
        yield
    finally:
        _PINNED.reset(token)


def innermost_pin(names: Collection[str], project: str | None = None) -> PinnedStep | None:
    """Returns the pin of a model here; None where the newest step is to answer."""
    fitting = (pin for pin in reversed(_PINNED.get()) if pin.names.intersection(names))
    return next((pin for pin in fitting if project is None or pin.project in (None, project)), None)


def name_of_step(model: AnyModel, name: str, step: int | None) -> str:
    """Returns the name to send as `model`. step: None for the one that is pinned here, or else the newest."""
    pin = innermost_pin({model.name, stored_name(model)}, model.project) if step is None else None
    if pin is None:
        return name if step is None else f"{name}@{step}"
    return pin.inference_name or f"{name}@{pin.step}"
