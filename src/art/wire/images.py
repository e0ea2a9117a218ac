"""Images in token ids: a prompt holds an image as a run of negative ids, one for each token that the model
has for it.

The ids spell the image's name, so whoever has the ids knows what the model saw, and two prompts with
different images differ from the image's first token on: the ledger, conversations that are continued and the
token tree treat images like any other tokens. Names are content addresses: the first 15 bytes of the SHA-256
of the image's file.

    name   30 hexadecimal digits, read as four numbers of 30 bits      a, b, c, d
    ids    -1 - a, -1 - b, -1 - c, -1 - d, -1 - a, ...

    >>> image_ids("00000001" + 21 * "0" + "2", 6)
    [-1, -268435457, -1, -3, -1, -268435457]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

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
