"""Losses by name. A new loss is one file and one line here; `tests/contracts/test_losses.py` tests it from
then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from art.errors import ConfigurationError
from art.training.losses import (
    cispo,
    cross_entropy,
    dppo,
    gmpo,
    importance_sampling,
    ppo,
    reinforce,
    sapo,
    vespo,
)
from art.training.losses.base import LossInputs, LossOutput
from art.training.losses.compose import Loss, compose
from art.training.losses.params import bind_params
from art.wire.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True, slots=True)
class LossKind:
    """A loss function and the dataclass of its parameters."""

    function: Callable[[LossInputs, Any], LossOutput]
    params: type[Any]
    has_ratio: bool = True
    """It divides by the probability of another policy, so it may be trained on that policy's samples."""


LOSSES: Mapping[str, LossKind] = MappingProxyType(
    {
        "cispo": LossKind(function=cispo.cispo, params=cispo.Params),
        "cross_entropy": LossKind(
            function=cross_entropy.cross_entropy, params=cross_entropy.Params, has_ratio=False
        ),
        "dppo": LossKind(function=dppo.dppo, params=dppo.Params),
        "gmpo": LossKind(function=gmpo.gmpo, params=gmpo.Params),
        "grpo": LossKind(function=ppo.ppo, params=ppo.Params),
        "importance_sampling": LossKind(
            function=importance_sampling.importance_sampling, params=importance_sampling.Params
        ),
        "ppo": LossKind(function=ppo.ppo, params=ppo.Params),
        "reinforce": LossKind(function=reinforce.reinforce, params=reinforce.Params, has_ratio=False),
        "sapo": LossKind(function=sapo.sapo, params=sapo.Params),
        "vespo": LossKind(function=vespo.vespo, params=vespo.Params),
    }
)


def make_loss(algorithm: Algorithm) -> Loss:
    """The loss of an algorithm: the token term with its parameters bound, the correction for the mismatch,
    and the KL term where it is part of the loss. The ratio is taken at the algorithm's level.

    Raises ConfigurationError for unknown names and parameters, listing the known ones, and for wrong values.
    Which parts fit each other is `art.algorithms.check_algorithm`'s to say.
    """
    spec = algorithm.loss
    kind = LOSSES.get(spec.name)
    if kind is None:
        raise ConfigurationError(f"Unknown loss {spec.name!r}. Known: {', '.join(sorted(LOSSES))}.")
    params = bind_params(spec.name, kind.params, spec.params)
    return compose(algorithm, lambda x: kind.function(x, params), has_ratio=kind.has_ratio)
