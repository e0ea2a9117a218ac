"""Tinker's losses by name: what a datum has for them, and the algorithm of ART that computes the same.

All are sums over the tokens of a request, without a divisor. r: ratio to the logprobs that came with the
token, A: its advantage, w: its weight.

    cross_entropy        -w log p
    importance_sampling  -r A
    ppo                  -min(r A, clip(r) A)
    cispo                -sg(clip(r)) A log p
    dro                  -A log p + (beta / 2) (log r)^2
    gspo                 -min(s A, clip(s) A); s has the value of the geometric mean of the ratios that
                         sequence_ratio_mask marks, and the gradient of the token's own logprob

`weights` beside advantages, which programs for other servers send, multiply a token's term as `mask` does. In
gspo they are 0 or 1 and say which tokens count, also in the ratio.

The trainer computes them; `elementwise_loss` says afterwards what each token had in the sum. A log r that is
an exponent is held within +-20, where it has no gradient; that of dro is as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from art.batch.batch_types import FloatArray
from art.wire.algorithm import AdvantageSpec, Algorithm, LossSpec
from art_extensions.tinker.refusals import UNSUPPORTED_LOSS, refusal

CUSTOM = "custom"
"""The loss of a program's own, of which a request says the id."""
TARGETS, WEIGHTS, LOGPROBS, ADVANTAGES = "target_tokens", "weights", "logprobs", "advantages"
MASK, RATIO_MASK = "mask", "sequence_ratio_mask"
MAX_LOG_RATIO = 20.0
"""The trainer's bound of an exponent."""
_LOW, _HIGH, _BETA = "clip_low_threshold", "clip_high_threshold", "beta"


@dataclass(frozen=True, kw_only=True, slots=True)
class LossFunction:
    """One loss. Each of its columns has the shape of the targets."""

    needs: tuple[str, ...]
    """The columns that every datum has beside `target_tokens`."""
    may_have: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    """The names of `loss_fn_config`."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    """The values of names that a request may leave out; the others come with it."""
    several_targets: bool = False
    """A position may have K targets: [N, K]."""


_SAMPLED = (LOGPROBS, ADVANTAGES)
_CLIP = MappingProxyType({_LOW: 0.8, _HIGH: 1.2})
LOSS_FUNCTIONS: Mapping[str, LossFunction] = MappingProxyType(
    {
        "cross_entropy": LossFunction(needs=(), may_have=(WEIGHTS,), several_targets=True),
        "importance_sampling": LossFunction(needs=_SAMPLED, may_have=(MASK, WEIGHTS)),
        "ppo": LossFunction(needs=_SAMPLED, may_have=(MASK, WEIGHTS), config=(_LOW, _HIGH), defaults=_CLIP),
        "cispo": LossFunction(needs=_SAMPLED, may_have=(MASK, WEIGHTS), config=(_LOW, _HIGH), defaults=_CLIP),
        "dro": LossFunction(needs=_SAMPLED, may_have=(MASK, WEIGHTS), config=(_BETA,)),
        "gspo": LossFunction(needs=(*_SAMPLED, RATIO_MASK), may_have=(WEIGHTS,), config=(_LOW, _HIGH)),
    }
)
_REASONS = MappingProxyType(
    {
        "stable_reinforce": "It needs what Tinker's own sampler records of each sequence, and neither this "
        "record nor the formula is published.",
    }
)


def find_loss(name: str) -> LossFunction:
    """Raises RequestError (`unsupported_loss`) for a name that is not supported, with the ones that are."""
    found = LOSS_FUNCTIONS.get(name)
    if found is None:
        reason = f" {_REASONS[name]}" if name in _REASONS else ""
        raise refusal(
            f"loss_fn {name!r} is not supported.{reason} Use {', '.join(LOSS_FUNCTIONS)}.",
            param="loss_fn",
            code=UNSUPPORTED_LOSS,
        )
    return found


def algorithm_of(loss_fn: str, config: Mapping[str, float | str]) -> Algorithm:
    """Returns the algorithm whose loss, with a normalizer of 1, is Tinker's. It changes no advantage.

    Raises RequestError for an unsupported loss, for an unknown name of the configuration, a missing one and
    a value out of range.
    """
    values = _values(loss_fn, find_loss(loss_fn), config)
    loss = {
        "cross_entropy": lambda: LossSpec(name="reinforce"),
        "importance_sampling": lambda: LossSpec(name="importance_sampling"),
        "ppo": lambda: LossSpec(name="ppo", params=_epsilons(values)),
        "cispo": lambda: LossSpec(name="cispo", params=_epsilons(values)),
        "dro": lambda: LossSpec(name="dro", params={"beta": values[_BETA]}),
        "gspo": lambda: LossSpec(name="gspo_token", params=_epsilons(values)),
    }[loss_fn]()
    return Algorithm(
        name=f"tinker {loss_fn}", advantage=AdvantageSpec(kind="reward"), loss=loss, zero_advantage="count"
    )


def _values(loss_fn: str, loss: LossFunction, config: Mapping[str, float | str]) -> dict[str, float]:
    values = dict(loss.defaults)
    for name, value in config.items():
        param = f"loss_fn_config.{name}"
        if name not in loss.config:
            known = ", ".join(loss.config) or "nothing"
            raise refusal(f"loss_fn {loss_fn!r} has no {param}. It takes {known}.", param=param)
        if isinstance(value, str) or not math.isfinite(value):
            raise refusal(f"{param} is {value!r}; send a finite number.", param=param)
        values[name] = float(value)
    for name in loss.config:
        if name not in values:
            param = f"loss_fn_config.{name}"
            raise refusal(f"loss_fn {loss_fn!r} needs {param}; send a number.", param=param)
    for name, low, high in ((_LOW, 0.0, 1.0), (_HIGH, 1.0, math.inf), (_BETA, 0.0, math.inf)):
        if name in values and not low <= values[name] <= high:
            param = f"loss_fn_config.{name}"
            bound = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
            raise refusal(f"{param} is {values[name]!r}; send a number {bound}.", param=param)
    return values


def _epsilons(values: Mapping[str, float]) -> dict[str, float]:
    return {"epsilon": 1 - values[_LOW], "epsilon_high": values[_HIGH] - 1}


def elementwise_loss(
    loss_fn: str, config: Mapping[str, float | str], columns: Mapping[str, FloatArray], logprobs: FloatArray
) -> FloatArray:
    """Each target's term in the sum of the loss, in the shape of the datum's targets.

    columns: the datum's, each in that shape. logprobs: of its targets, by the weights before the step.
    """
    if loss_fn == "cross_entropy":
        return -logprobs * columns[WEIGHTS] if WEIGHTS in columns else -logprobs
    values = _values(loss_fn, find_loss(loss_fn), config)
    advantages, difference = columns[ADVANTAGES], logprobs - columns[LOGPROBS]
    if loss_fn != "dro":
        difference = np.clip(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    if loss_fn == "gspo":
        inside = columns[RATIO_MASK] != 0
        if not inside.any():
            return np.zeros_like(logprobs)
        difference = np.full_like(difference, difference[inside].mean())
    if loss_fn == "dro":
        terms = difference**2 * (values[_BETA] / 2) - logprobs * advantages
    else:
        ratio = np.exp(difference)
        clipped = np.clip(ratio, values.get(_LOW), values.get(_HIGH)) if _LOW in values else ratio
        gain = clipped * logprobs * advantages if loss_fn == "cispo" else clipped * advantages
        terms = -gain if loss_fn == "cispo" else -np.minimum(ratio * advantages, gain)
    return terms * columns[MASK] if MASK in columns else terms
