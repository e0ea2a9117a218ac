"""Other ids in the places of a prompt: those that a request names, and draws.

A request names ids in a tensor [P - 1, K] for a prompt of P ids: row i is about the prompt's id i + 1, and -1
names nothing. The reply has their logprobs in the same layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from art.wire.engine import MOST_ALTERNATIVES
from art_extensions.tinker.records import SampleAsked, TensorAsked
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.sample_response import AltTokens, TargetLogprobs

_TARGETS, _DRAWS = "target_prompt_logprobs", "prompt_alt_tokens_k"
_NOTHING = -1


def alternatives_of(asked: SampleAsked, length: int) -> dict[str, Any] | None:
    """`prompt_alternatives` of `/inference/v1/generate`, for a prompt of so many ids; None: not asked for.

    Raises RequestError for a tensor that does not fit the prompt or itself, and for more than is told.
    """
    params, k, targets = asked.sampling_params, asked.prompt_alt_tokens_k, asked.target_prompt_logprobs
    if k * (length - 1) > MOST_ALTERNATIVES:
        problem = f"{_DRAWS}={k} asks for {k * (length - 1)} draws; the most is {MOST_ALTERNATIVES}"
        raise refusal(problem, param=_DRAWS)
    if targets is None and not k:
        return None
    wanted: dict[str, Any] = {"draws": k, "temperature": params.temperature, "seed": params.seed}
    if targets is not None:
        wanted["ids"] = [(row + 1, token) for row, _, token in _list_named(targets, length)]
    return wanted


def target_logprobs(asked: SampleAsked, logprobs: Sequence[float], length: int) -> TargetLogprobs | None:
    """Returns those of the named ids, which come in their order, in the layout of the request."""
    targets = asked.target_prompt_logprobs
    if targets is None:
        return None
    named = _list_named(targets, length)
    values = np.zeros(len(targets.data), np.float32)
    values[[at for _, at, _ in named]] = logprobs
    return TargetLogprobs(
        values=values,
        shape=targets.shape,
        crow=targets.sparse_crow_indices,
        column=targets.sparse_col_indices,
    )


def alt_tokens(asked: SampleAsked, draws: Sequence[Sequence[tuple[int, float]]]) -> AltTokens | None:
    """The draws in each place after the first."""
    if not asked.prompt_alt_tokens_k:
        return None
    drawn_PK2 = np.array(draws, np.float64).reshape(-1, asked.prompt_alt_tokens_k, 2)
    return AltTokens(tokens=drawn_PK2[..., 0].astype(np.int64), logprobs=drawn_PK2[..., 1].astype(np.float32))


def with_alternatives(asked: SampleAsked, reply: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Returns what a reply of the server adds to the message of a sample."""
    found = reply.get("prompt_alternatives") or {"logprobs": [], "draws": []}
    return {
        "target_prompt_logprobs": target_logprobs(asked, found["logprobs"], length),
        "alt_tokens": alt_tokens(asked, found["draws"]),
    }


def _list_named(targets: TensorAsked, length: int) -> list[tuple[int, int, int]]:
    """The row of each named id, its place among the values, and the id. Raises RequestError."""
    if targets.shape[0] != length - 1:
        raise _misfit(f"has shape {list(targets.shape)}; a prompt of {length} ids takes {length - 1} rows")
    row_C = _rows(targets)
    cells = list(zip(row_C, range(len(row_C)), targets.data, strict=True))
    if any(token < _NOTHING for token in targets.data):
        raise _misfit("has ids below -1")
    named = [cell for cell in cells if cell[2] != _NOTHING]
    if not 0 < len(named) <= MOST_ALTERNATIVES:
        raise _misfit(f"names {len(named)} ids; from 1 to {MOST_ALTERNATIVES} can be named")
    return named


def _rows(targets: TensorAsked) -> list[int]:
    """The row of each value. Raises RequestError where values, shape and indices do not fit each other."""
    (rows, width), values = targets.shape, len(targets.data)
    crow, column = targets.sparse_crow_indices, targets.sparse_col_indices
    if crow is None or column is None:
        if (crow, column) != (None, None) or values != rows * width:
            raise _misfit(f"has {values} values, and its shape {[rows, width]} asks for {rows * width}")
        return [at // width for at in range(values)]
    rises = all(0 <= one <= other for one, other in pairwise(crow))
    if len(crow) != rows + 1 or crow[0] != 0 or crow[-1] != values or not rises:
        raise _misfit(f"is sparse; its {rows + 1} row pointers rise from 0 to {values}")
    if len(column) != values or not all(0 <= one < width for one in column):
        raise _misfit(f"is sparse; each of its {values} values has a column from 0 to {width - 1}")
    return [row for row, (start, end) in enumerate(pairwise(crow)) for _ in range(start, end)]


def _misfit(problem: str) -> Exception:
    return refusal(f"{_TARGETS} {problem}", param=_TARGETS)
