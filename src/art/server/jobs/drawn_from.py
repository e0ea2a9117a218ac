"""Which distribution a sample was drawn from, or why the trainer does not compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from art.samples.types import Untrainable
from art.server.ledger.schema import SampleRecord
from art.wire.algorithm import Algorithm
from art.wire.training import PLAIN_SAMPLING, SamplingSpec

_NEUTRAL: Mapping[str, Any] = MappingProxyType(
    {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "min_tokens": 0}
)
"""What changes a distribution from token to token, and the value that does not."""
_SHAPES_NOTHING = frozenset({"max_tokens", "seed", "stop", "stop_string", "metadata", "ignore_eos"})

_SAME_MASKS = "builtin"
"""The engine that forbids the same ids under a constraint as the trainer."""
_COLDEST = 1e-6
_GREEDY: Mapping[str, Callable[[float], bool]] = MappingProxyType(
    {
        "temperature": lambda value: value < _COLDEST,
        "top_k": lambda value: value == 1,
        "min_p": lambda value: value >= 1,
    }
)


def drawn_from(record: SampleRecord, algorithm: Algorithm) -> SamplingSpec | Untrainable:
    """The distribution that the sample's logprobs are of; it is the one that is trained.

    A supervised algorithm trains the model's own, whatever drew the text. Untrainable: greedy sampling (it
    explores nothing: there is no distribution to improve), penalties and min_tokens (the trainer does not
    compute them), a constraint under another engine than the builtin one, anything unknown, and a
    distribution other than the model's own where a teacher's server gives logprobs of its own.
    """
    if algorithm.advantage.kind == "none":
        return PLAIN_SAMPLING
    given = {name: value for name, value in record.sampling.items() if value is not None}
    for name, is_greedy in _GREEDY.items():
        if name in given and is_greedy(given[name]):
            return Untrainable(reason="greedy", drawn=f"{name} = {given[name]!r}")
    for name, neutral in _NEUTRAL.items():
        if given.pop(name, neutral) != neutral:
            return Untrainable(reason="penalties", drawn=f"{name} = {record.sampling[name]!r}")
    constraint = given.get("constraint")
    if constraint is None:
        given.pop("stop_token_ids", None)
    elif constraint.get("by") != _SAME_MASKS:
        drawn = f"a {constraint.get('kind')} constraint by engine {constraint.get('by')!r}"
        return Untrainable(reason="constraint", drawn=drawn)
    else:
        given["constraint"] = {"kind": constraint["kind"], "text": constraint["text"]}
    for name, value in given.items():
        if name not in SamplingSpec.model_fields and name not in _SHAPES_NOTHING:
            return Untrainable(reason="unknown", drawn=f"{name} = {value!r}")
    try:
        spec = SamplingSpec(**{name: given[name] for name in SamplingSpec.model_fields if name in given})
    except ValidationError as error:
        first = error.errors()[0]
        return Untrainable(reason="unknown", drawn=f"{first['loc'][0]} = {first['input']!r}")
    if spec != PLAIN_SAMPLING and algorithm.teacher is not None and algorithm.teacher.kind == "server":
        return Untrainable(reason="teacher", drawn=repr(spec))
    return spec
