"""Losses by name, with their parameters: the fields of a loss's dataclass, each with values that its
annotation allows.

A new loss is one file, a line here and one in `art.batch.algorithms.facts`; `tests/contracts/test_losses.py`
tests it from then on. One of another package comes through the door for extensions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from art.batch.algorithms.facts import LossExtension, loss_facts
from art.errors import ConfigurationError
from art.extensions import LOSS, load_extension
from art.training.losses import (
    cispo,
    cross_entropy,
    dppo,
    dro,
    gmpo,
    gspo_token,
    importance_sampling,
    ppo,
    reinforce,
    sapo,
    vespo,
)
from art.training.losses.base import LossInputs, LossOutput
from art.training.losses.compose import Loss, compose
from art.wire.algorithm import Algorithm

_WORDS: Mapping[type, str] = MappingProxyType(
    {float: "a finite number of at least 0", bool: "True or False", NoneType: "None"}
)


T = TypeVar("T")


def bind_params(loss: str, kind: type[T], params: Mapping[str, Any]) -> T:
    """An instance of the frozen dataclass `kind`, whose fields are floats, bools or may be None.

    Raises ConfigurationError for unknown names, listing the known ones, and for values that do not fit.
    """
    hints = get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # any dataclass
    for name, value in params.items():
        if name not in known:
            raise ConfigurationError(
                f"Loss {loss!r} has no parameter {name!r}. Known: {', '.join(known) or 'none at all'}."
            )
        allowed = get_args(hints[name]) or (hints[name],)
        if not _fits(value, allowed):
            words = " or ".join(_WORDS[one] for one in allowed)
            raise ConfigurationError(f"{name!r} of loss {loss!r} is {value!r}; it is {words}.")
    return kind(**params)


def _fits(value: object, allowed: tuple[type, ...]) -> bool:
    if value is None or isinstance(value, bool):  # a bool is an int for Python, not for a reader
        return type(value) in allowed
    return float in allowed and isinstance(value, int | float) and 0 <= value < math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class LossKind:
    """A loss function and the dataclass of its parameters."""

    function: Callable[[LossInputs, Any], LossOutput]
    params: type[Any]


LOSSES: Mapping[str, LossKind] = MappingProxyType(
    {
        "cispo": LossKind(function=cispo.cispo, params=cispo.CispoParams),
        "cross_entropy": LossKind(
            function=cross_entropy.cross_entropy, params=cross_entropy.CrossEntropyParams
        ),
        "dppo": LossKind(function=dppo.dppo, params=dppo.DppoParams),
        "dro": LossKind(function=dro.dro, params=dro.DroParams),
        "gmpo": LossKind(function=gmpo.gmpo, params=gmpo.GmpoParams),
        "grpo": LossKind(function=ppo.ppo, params=ppo.PpoParams),
        "gspo_token": LossKind(function=gspo_token.gspo_token, params=gspo_token.GspoTokenParams),
        "importance_sampling": LossKind(
            function=importance_sampling.importance_sampling,
            params=importance_sampling.ImportanceSamplingParams,
        ),
        "ppo": LossKind(function=ppo.ppo, params=ppo.PpoParams),
        "reinforce": LossKind(function=reinforce.reinforce, params=reinforce.ReinforceParams),
        "sapo": LossKind(function=sapo.sapo, params=sapo.SapoParams),
        "vespo": LossKind(function=vespo.vespo, params=vespo.VespoParams),
    }
)


def make_loss(algorithm: Algorithm) -> Loss:
    """The loss of an algorithm: the token term with its parameters bound, the correction for the mismatch,
    and the KL term where it is part of the loss. The ratio is taken at the algorithm's level.

    Raises ConfigurationError for unknown names and parameters, listing the known ones, and for wrong values.
    Which parts fit each other is `art.batch.algorithms.check_algorithm`'s to say.
    """
    spec = algorithm.loss
    facts = loss_facts(spec.name)
    kind = LOSSES.get(spec.name) or _added_loss(spec.name)
    params = bind_params(spec.name, kind.params, spec.params)
    return compose(algorithm, lambda x: kind.function(x, params), has_ratio=facts.has_ratio)


def _added_loss(name: str) -> LossKind:
    """Returns the loss of an extension. Raises ConfigurationError where its term cannot be imported."""
    added: LossExtension = load_extension(LOSS, name)
    module, _, function = added.term.partition(":")
    try:
        return LossKind(function=getattr(import_module(module), function), params=added.params)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the term of loss {name!r} is {added.term}, which cannot be imported: {error}"
        ) from error
