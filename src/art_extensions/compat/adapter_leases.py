"""`art.adapter_leases`: the step that a context samples from, by the names of later releases.

    with pin_inference_step("agent", 3):
        model.get_inference_name()            "agent@3", in this task and those it starts

A pin keeps no checkpoint. `backend.adapter_lease(model, step)` does both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from art.client.pinned_steps import PinnedStep, innermost_pin, pinned
from art.errors import ConfigurationError, NotBuiltError


@dataclass(frozen=True)
class InferenceTarget:
    """A step, and the name to send as `model` for it."""

    step: int
    model_name: str


@contextmanager
def pin_inference_target(
    model_name: str, *, step: int, inference_name: str | None = None
) -> Iterator[InferenceTarget]:
    """Makes `get_inference_name()` of the models of this name give that of a step, inside the block.

    inference_name: what it gives; None for `name@step`. Raises ConfigurationError for what is no step.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ConfigurationError(f"a step is a whole number from 0 on, not {step!r}")
    pin = PinnedStep(names=frozenset({model_name}), step=step, inference_name=inference_name)
    with pinned(pin):
        yield InferenceTarget(step, inference_name or f"{model_name}@{step}")


@contextmanager
def pin_inference_step(model_name: str, step: int) -> Iterator[InferenceTarget]:
    """Makes `get_inference_name()` of the models of this name give that of a step, inside the block."""
    with pin_inference_target(model_name, step=step) as target:
        yield target


def pinned_inference_step(model_name: str) -> int | None:
    """Returns the step that is pinned here; None where the newest one answers."""
    pin = innermost_pin({model_name})
    return None if pin is None else pin.step


def pinned_inference_name(model_name: str, step: int | None = None) -> str | None:
    """Returns the name that is pinned here. step: None for any; otherwise None where another is pinned."""
    pin = innermost_pin({model_name})
    if pin is None or step not in (None, pin.step):
        return None
    return pin.inference_name or f"{model_name}@{pin.step}"


def in_flight_lora_name(*_: Any, **__: Any) -> NoReturn:
    """Raises NotBuiltError: no adapter changes while it answers."""
    raise NotBuiltError(
        "art.adapter_leases.in_flight_lora_name is not built: an adapter never changes while it is served. "
        "Each step has a name of its own, `model.get_inference_name(step)`"
    )
