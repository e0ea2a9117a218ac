"""What an engine refuses before it samples, in the same words whichever engine it is, and how long a row may
be.

`dynamic` and `longrope` embeddings choose their frequencies by the longest position of a forward pass, so
that a token's keys change with the length of what stands beside or after it. Up to the length that the model
was first trained with, they do not: `longest_fixed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from art.engine.protocol import GenerateRequest, Sampling
from art.errors import RequestError
from art.wire.engine import MOST_ALTERNATIVES, Alternatives
from art.wire.sampling import (
    HIGHEST_BIAS,
    HIGHEST_PENALTY,
    HIGHEST_REPETITION_PENALTY,
    MOST_TOP_LOGPROBS,
)

BY_LENGTH = frozenset({"dynamic", "longrope"})


def longest_fixed(config: Any) -> int | None:
    """Tokens of a path up to which positions have one meaning; None: any number.

    `config` is that of the text model. Families with two kinds of layers have one embedding each.
    """
    limits = [
        int(
            embedding.get("original_max_position_embeddings")
            or getattr(config, "original_max_position_embeddings", None)
            or config.max_position_embeddings
        )
        for embedding in _embeddings(getattr(config, "rope_parameters", None))
        if embedding.get("rope_type") in BY_LENGTH
    ]
    return min(limits, default=None)


def _embeddings(parameters: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(parameters, Mapping):
        if "rope_type" in parameters:
            yield parameters
        else:
            for inner in parameters.values():
                yield from _embeddings(inner)


def check_request(request: GenerateRequest, *, max_context: int, vocab_size: int) -> None:
    """Raises: RequestError for a prompt that is empty, leaves no place for a completion, or has ids that the
    model does not have, for `max_tokens` below 1, and for penalties, `min_tokens` and `top_logprobs` that
    are out of bounds.
    """
    length = len(request.prompt_ids)
    if not length:
        raise RequestError("the prompt has no tokens", status=400, code="invalid_prompt")
    if length > max_context - 1:
        raise RequestError(
            f"the prompt has {length} tokens; this model's context is {max_context} tokens, "
            "of which at least one is the completion's",
            status=400,
            code="context_length_exceeded",
        )
    ids = request.prompt_ids
    _check_ids(ids if request.images is None else [one for one in ids if one >= 0], vocab_size)
    if request.sampling.max_tokens < 1:
        raise RequestError(
            f"max_tokens is {request.sampling.max_tokens!r}; it must be at least 1",
            status=400,
            code="invalid_max_tokens",
        )
    _check_penalties(request.sampling)
    _check_min_tokens(request.sampling, vocab_size)
    if not 0 <= request.sampling.top_logprobs <= MOST_TOP_LOGPROBS:
        raise RequestError(
            f"top_logprobs is {request.sampling.top_logprobs!r}; it must be 0 to {MOST_TOP_LOGPROBS}",
            status=400,
            code="invalid_top_logprobs",
        )


def _check_penalties(sampling: Sampling) -> None:
    frequency, presence = sampling.frequency_penalty, sampling.presence_penalty
    repetition = sampling.repetition_penalty
    if max(abs(frequency), abs(presence)) > HIGHEST_PENALTY or not (
        0 < repetition <= HIGHEST_REPETITION_PENALTY
    ):
        raise RequestError(
            f"frequency_penalty {frequency!r} and presence_penalty {presence!r} must be "
            f"-{HIGHEST_PENALTY:g} to {HIGHEST_PENALTY:g}, repetition_penalty {repetition!r} above 0 and at "
            f"most {HIGHEST_REPETITION_PENALTY:g}",
            status=400,
            code="invalid_penalty",
        )


def _check_min_tokens(sampling: Sampling, vocab_size: int) -> None:
    least, most = sampling.min_tokens, sampling.max_tokens
    if not 0 <= least <= most:
        raise RequestError(
            f"min_tokens is {least!r}; it must be 0 to max_tokens, {most}",
            status=400,
            code="invalid_min_tokens",
        )
    if least and sampling.constraint is not None:
        raise RequestError(
            f"min_tokens {least!r} with a {sampling.constraint.kind} constraint: the constraint alone says "
            "where the text may end; put the length into the schema or the grammar",
            status=400,
            code="invalid_min_tokens",
        )
    if least and len({one for one in sampling.stop_token_ids if one < vocab_size}) == vocab_size:
        raise RequestError(
            f"min_tokens {least!r} with each of the model's {vocab_size} ids in stop_token_ids: "
            "no id is left to draw; leave one out",
            status=400,
            code="invalid_min_tokens",
        )


def check_bias(pairs: Sequence[tuple[int, float]], *, vocab_size: int) -> None:
    """Raises: RequestError for an id that the model does not have and for a number beyond 100."""
    for token, value in pairs:
        if not 0 <= token < vocab_size or not -HIGHEST_BIAS <= value <= HIGHEST_BIAS:
            raise RequestError(
                f"logit_bias {value!r} of id {token!r}: ids are 0 to {vocab_size - 1}, "
                f"biases {-HIGHEST_BIAS:g} to {HIGHEST_BIAS:g}",
                status=400,
                code="invalid_logit_bias",
                param="logit_bias",
            )


def check_ranked(rows: Sequence[Sequence[int]], most: int, *, max_context: int, vocab_size: int) -> None:
    """Rows to rank. Raises: RequestError as `check_rows` does, for a row that leaves no place, and for `most`
    out of bounds.
    """
    check_rows(rows, max_context=max_context - 1, vocab_size=vocab_size)
    if not 0 <= most <= MOST_TOP_LOGPROBS:
        raise RequestError(
            f"{most!r} of the most probable ids were asked for; it must be 0 to {MOST_TOP_LOGPROBS}",
            status=400,
            code="invalid_top_logprobs",
        )


def check_alternatives(rows: Sequence[Sequence[int]], asked: Alternatives | None, *, vocab_size: int) -> None:
    """Raises: RequestError for alternatives of several rows, a place or an id that is not there, and for more
    draws than are told.
    """
    if asked is None:
        return
    length = len(rows[0])
    fits = len(rows) == 1 and asked.draws * (length - 1) <= MOST_ALTERNATIVES
    if not fits or any(not (0 < at < length and 0 <= token < vocab_size) for at, token in asked.ids):
        raise RequestError(
            f"alternatives are of one row, in places from 1 to {length - 1}, ids from 0 to {vocab_size - 1}, "
            f"and at most {MOST_ALTERNATIVES} draws",
            status=400,
            code="invalid_alternatives",
            param="prompt_alternatives",
        )


def check_rows(rows: Sequence[Sequence[int]], *, max_context: int, vocab_size: int) -> None:
    """Rows to score. Raises: RequestError for one of fewer than two ids, one that is longer than the context,
    and for ids that the model does not have.
    """
    for row in rows:
        if not 2 <= len(row) <= max_context:
            raise RequestError(
                f"a row to score has {len(row)} tokens; it must have 2 to {max_context}",
                status=400,
                code="context_length_exceeded" if len(row) > 2 else "invalid_prompt",
            )
        _check_ids(row, vocab_size)


def _check_ids(ids: Sequence[int], vocab_size: int) -> None:
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        raise RequestError(
            f"token id {low if low < 0 else high!r} is not one of the model's {vocab_size}",
            status=400,
            code="invalid_token_id",
        )
