"""The reply to a request for samples, as the SDK reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from art.batch.batch_types import FloatArray
from art_extensions.tinker import tinker_public_pb2 as messages
from art_extensions.tinker.tensors import (
    float_bytes,
    id_bytes,
    write_floats,
    write_longs,
    write_sparse_floats,
)

NO_LOGPROB = -99999.0
"""The filler, beside id 0, of a place of a table that has no token."""
_STOP_REASONS = {"stop": messages.STOP_REASON_STOP, "length": messages.STOP_REASON_LENGTH}

TopTokens = Sequence[Sequence[tuple[int, float]] | None]
"""The likeliest ids and their logprobs at each position, or None where they were not computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerSequence:
    """One sample."""

    tokens: Sequence[int]
    logprobs: Sequence[float] | None
    """One for each token; None: not asked for."""
    stop_reason: Literal["stop", "length"]
    top_tokens: TopTokens | None = None
    """One for each token; None: not asked for."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TargetLogprobs:
    """Logprobs of ids that the request named, K for each of the P - 1 positions after the prompt's first. In
    the layout of the request: dense, or sparse with its row pointers and columns."""

    values: FloatArray
    """Dense: [P - 1, K], 0 where the request had -1. Sparse: those of the listed cells, row by row."""
    shape: tuple[int, int]
    crow: Sequence[int] | None = None
    column: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AltTokens:
    """Draws for each position of the prompt after its first, [P - 1, k]."""

    tokens: np.typing.NDArray[np.integer]
    logprobs: FloatArray


def sample_response(
    sequences: Sequence[AnswerSequence],
    *,
    prompt_logprobs: Sequence[float | None] | None = None,
    top_prompt_logprobs: TopTokens | None = None,
    target_prompt_logprobs: TargetLogprobs | None = None,
    alt_tokens: AltTokens | None = None,
    cached_tokens: int = 0,
) -> bytes:
    """Returns the message.

    prompt_logprobs: one for each token of the prompt, None where there is none, as for the first.
    top_prompt_logprobs: as many, the likeliest tokens of each position.
    cached_tokens: tokens of the prompt that the prefix cache held.
    """
    response = messages.SampleResponse(
        sequences=[_sequence(one) for one in sequences], prompt_cache_hit_tokens=cached_tokens
    )
    if prompt_logprobs is not None:
        response.prompt_logprobs = float_bytes([np.nan if one is None else one for one in prompt_logprobs])
    if top_prompt_logprobs is not None:
        response.topk_prompt_logprobs.CopyFrom(_table(top_prompt_logprobs))
    if target_prompt_logprobs is not None:
        response.target_prompt_logprobs.CopyFrom(_targets(target_prompt_logprobs))
    if alt_tokens is not None:
        response.prompt_alt_tokens.tokens.CopyFrom(write_longs(alt_tokens.tokens))
        response.prompt_alt_tokens.logprobs.CopyFrom(write_floats(alt_tokens.logprobs))
    return bytes(response.SerializeToString())


def _sequence(one: AnswerSequence) -> messages.SampledSequence:
    message = messages.SampledSequence(
        stop_reason=_STOP_REASONS[one.stop_reason], tokens=id_bytes(one.tokens)
    )
    if one.logprobs is not None:
        if len(one.logprobs) != len(one.tokens):
            raise ValueError(f"A sample of {len(one.tokens)} tokens has {len(one.logprobs)} logprobs.")
        message.logprobs = float_bytes(one.logprobs)
    if one.top_tokens is not None:
        message.topk_sampled_logprobs.CopyFrom(_table(one.top_tokens))
    return message


def _table(positions: TopTokens) -> messages.TopkLogprobs:
    k = max((len(one) for one in positions if one is not None), default=0)
    ids = np.zeros((len(positions), k), np.int32)
    logprobs = np.full((len(positions), k), NO_LOGPROB, np.float32)
    for row, found in enumerate(positions):
        for place, (token, logprob) in enumerate(found or ()):
            ids[row, place], logprobs[row, place] = token, logprob
    return messages.TopkLogprobs(
        token_ids=id_bytes(ids), logprobs=float_bytes(logprobs), k=k, length=len(positions)
    )


def _targets(found: TargetLogprobs) -> messages.Tensor:
    if found.crow is None or found.column is None:
        return write_floats(found.values.reshape(found.shape))
    return write_sparse_floats(found.values, shape=found.shape, crow=found.crow, column=found.column)
