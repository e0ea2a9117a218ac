"""Losses by name. A new loss is one file and one line here; `tests/contracts/test_losses.py` tests it from
then on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from art.errors import ConfigurationError
from art.training.losses import cispo, ppo
from art.training.losses.base import LossInputs, LossOutput
from art.wire.algorithm import Algorithm

Loss = Callable[[LossInputs], LossOutput]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossKind:
    """A loss function and the dataclass of its parameters."""

    function: Callable[[LossInputs, Any], LossOutput]
    params: type[Any]


LOSSES: Mapping[str, LossKind] = MappingProxyType(
    {
        "cispo": LossKind(function=cispo.cispo, params=cispo.Params),
        "grpo": LossKind(function=ppo.ppo, params=ppo.Params),
        "ppo": LossKind(function=ppo.ppo, params=ppo.Params),
    }
)


def make_loss(algorithm: Algorithm) -> Loss:
    """The loss of an algorithm: its token term with the parameters bound.

    Raises ConfigurationError for unknown names and parameters, listing the known ones, and for wrong values.
    """
    spec = algorithm.loss
    kind = LOSSES.get(spec.name)
    if kind is None:
        raise ConfigurationError(f"Unknown loss {spec.name!r}. Known: {', '.join(sorted(LOSSES))}.")
    known = [one.name for one in dataclasses.fields(kind.params)]
    for name, value in spec.params.items():
        if name not in known:
            raise ConfigurationError(
                f"Loss {spec.name!r} has no parameter {name!r}. Known: {', '.join(known)}."
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigurationError(
                f"{name!r} of loss {spec.name!r} is {value!r}; it is a finite number of at least 0."
            )
    params = kind.params(**spec.params)
    return lambda inputs: kind.function(inputs, params)
