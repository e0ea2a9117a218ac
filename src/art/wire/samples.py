"""What is known of a sampled completion: its row in the ledger and the distribution of its tokens.

That distribution is the model's own, shaped by the request: cut down to candidates by top_k, top_p and
min_p, held to a constraint, or of a kind that the trainer does not compute (`UNTRAINABLE`).

A candidates record holds, for a completion or a part of it, the ids that were left when each token was
drawn, as int32; records of parts are joined by `+`:

    count, id, id, ...    for one sampled token after the other, its ids in rising order

A count of 0 says that the set was not recorded: it had more than MAX_CANDIDATES ids. A record that is
empty says it of all tokens: nothing truncated, or the engine does not tell.

    >>> record = candidates_record([3, 7]) + candidates_record([]) + candidates_record([2])
    >>> [one.tolist() for one in split_candidates(record)]
    [[3, 7], [], [2]]

A prompt holds an image as a run of negative ids, one for each token that the model has for it. They spell the
image's name, so whoever has the ids knows what the model saw, and two prompts with different images differ
from the image's first token on: the ledger, conversations that are continued and the token tree treat images
like any other tokens. Names are content addresses: the first 15 bytes of the SHA-256 of the image's file.

    name   30 hexadecimal digits, read as four numbers of 30 bits      a, b, c, d
    ids    -1 - a, -1 - b, -1 - c, -1 - d, -1 - a, ...

    >>> image_ids("00000001" + 21 * "0" + "2", 6)
    [-1, -268435457, -1, -3, -1, -268435457]
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from art.wire.records import Strict
from art.wire.sampling import DISTRIBUTION, PARAMETERS


class SampleInfo(Strict):
    """GET /v1/samples/{sample_id}: one completion as it was sampled."""

    sample_id: str
    rollout_id: str | None
    project: str | None
    model: str
    """The name the request asked for."""
    step: int | None
    """Adapter version that sampled it; None for the base model."""
    parent_id: str | None
    """The sample whose ids this prompt extends, or None."""
    fork_reason: str | None
    """Why the prompt does not extend an earlier sample of the same conversation, or None."""
    prompt_ids: list[int]
    completion_ids: list[int]
    completion_logprobs: list[float]
    sampling: dict[str, Any]
    finish_reason: str
    created_at: float
    """Unix seconds."""


class RolloutInfo(Strict):
    """GET /v1/rollouts/{rollout_id}: its samples in the order of their creation."""

    rollout_id: str
    samples: list[SampleInfo]
    forks: dict[str, int] = Field(default_factory=dict)


MAX_CANDIDATES = 128
"""Ids of a set that is recorded: at most 516 bytes a token."""
CANDIDATES_NOT_RECORDED = array("i", [0]).tobytes()
_BYTES = 4


def candidates_record(ids: Sequence[int]) -> bytes:
    """Returns the record of one token's ids; of too many ids, that they are not recorded."""
    return array("i", [len(ids), *ids]).tobytes() if len(ids) <= MAX_CANDIDATES else CANDIDATES_NOT_RECORDED


def split_candidates(record: bytes) -> list[array[int]]:
    """The set of each token. Raises ValueError for bytes that are no record."""
    if len(record) % _BYTES:
        raise ValueError(f"{len(record)} bytes are not whole int32 numbers")
    numbers: array[int] = array("i")
    numbers.frombytes(record)
    sets, at = [], 0
    while at < len(numbers):
        stop = at + 1 + numbers[at]
        if not at < stop <= len(numbers):
            raise ValueError(f"a set of {numbers[at]} ids at number {at} of {len(numbers)}")
        sets.append(numbers[at + 1 : stop])
        at = stop
    return sets


def candidates_without_first(record: bytes, tokens: int) -> bytes:
    """The record of the tokens after so many."""
    rest = split_candidates(record)[tokens:]
    return b"".join(map(candidates_record, rest))


SEEING = frozenset({"idefics3", "smolvlm"})
"""The `model_type` of vision-language models that are sampled and trained with images."""
_PIECES, _BITS = 4, 30
LEAST_TOKENS = _PIECES
"""An image of fewer tokens cannot be spelled."""
_DIGITS = _PIECES * _BITS // 4


@dataclass(frozen=True, slots=True)
class ImageRun:
    """An image's place in a row of ids: `row[start:stop]`."""

    name: str
    start: int
    stop: int


def image_name(file: bytes) -> str:
    """Returns the content address of an image's file."""
    return hashlib.sha256(file).hexdigest()[:_DIGITS]


def image_ids(name: str, tokens: int) -> list[int]:
    """Returns the ids that stand for an image of so many tokens. Raises ValueError for fewer than four."""
    if tokens < LEAST_TOKENS:
        raise ValueError(f"an image of {tokens} tokens cannot be spelled; {LEAST_TOKENS} are the least")
    number = int(name, 16)
    pieces = (-1 - (number >> shift & (1 << _BITS) - 1) for shift in range(_BITS * (_PIECES - 1), -1, -_BITS))
    return list(islice(cycle(pieces), tokens))


def image_runs(ids: Sequence[int]) -> list[ImageRun]:
    """Finds the images of a row, in their order. Raises ValueError for negative ids that spell none.

    >>> image_runs([5, *image_ids("a" * 30, 4), 6]) == [ImageRun("a" * 30, 1, 5)]
    True
    """
    runs = []
    start = 0
    while start < len(ids):
        if ids[start] >= 0:
            start += 1
            continue
        stop = next((at for at in range(start, len(ids)) if ids[at] >= 0), len(ids))
        runs.append(_run(ids, start, stop))
        start = stop
    return runs


def _run(ids: Sequence[int], start: int, stop: int) -> ImageRun:
    number = 0
    for one in ids[start : start + _PIECES]:
        number = number << _BITS | (-1 - int(one))
    name = f"{number:0{_DIGITS}x}"
    if stop - start < LEAST_TOKENS or list(ids[start:stop]) != image_ids(name, stop - start):
        raise ValueError(f"the negative ids {list(ids[start : start + _PIECES])} at {start} are no image")
    return ImageRun(name, start, stop)


UntrainableReason = Literal["greedy", "constraint", "teacher", "unknown"]

_COMPUTED = [name for name in DISTRIBUTION if name in PARAMETERS and PARAMETERS[name].recorded != "never"]

UNTRAINABLE: Mapping[str, str] = MappingProxyType(
    {
        "greedy": "drawn greedily (temperature 0, top_k 1 or min_p 1): there is no other choice to compare "
        "with; give the calls that are to learn a temperature above 0",
        "constraint": "drawn under a constraint by a vLLM server that compiles constraints in its own way "
        "(one of `urls`, or with structured_outputs_config), so that the trainer does not know its masks; "
        "let ART start vLLM, or leave response_format and the like out of the calls that are to learn",
        "teacher": "drawn from another distribution than the model's own, of which a teacher's server gives "
        f"no logprobs; use temperature 1 without {', '.join(_COMPUTED[1:])} and constraints",
        "unknown": "drawn from a distribution that the trainer does not compute; use "
        f"{', '.join(_COMPUTED[:-1])} and {_COMPUTED[-1]} alone",
    }
)
"""What each reason means, and the remedy."""
