"""One completion under a constraint: which ids may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from art.errors import RequestError

Bits = npt.NDArray[np.uint8]


class Guide:
    """Tells what may follow the ids so far. Where the text may end, the ids that end it are allowed; where
    it must end, only they are.
    """

    def __init__(self, matcher: Any, *, stops: Sequence[int], ends: Sequence[int]) -> None:
        """`ends`: what llguidance itself takes for the end of a text."""
        self._matcher = matcher
        self._stops = np.unique(np.asarray(stops, np.int64))
        self._ends = np.asarray(ends, np.int64)

    @property
    def over(self) -> bool:
        """Nothing may follow, and no id says so: the completion ends here."""
        return not len(self._stops) and bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def allowed(self, vocabulary: int) -> Bits:
        """One bit for each of the model's ids, the first id lowest: `ceil(vocabulary / 8)` bytes.

        Raises: RequestError when the constraint has become too complex to follow.
        """
        matcher, size = self._matcher, -(-vocabulary // 8)
        bits = np.zeros(size, np.uint8)
        if not matcher.is_stopped():
            known = np.frombuffer(matcher.compute_bitmask(), np.uint8)[:size]
            bits[: len(known)] = known
            _clear(bits, self._ends)
        self._check()
        if matcher.is_accepting():
            _set(bits, self._stops)
        if not bits.any():
            _refuse("the model has no token that may come next")
        return bits

    def advance(self, token: int) -> None:
        """An id was drawn that does not end the completion. Raises: RequestError for one that may not be."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            _refuse(self._matcher.get_error().strip().partition("\n")[0])


def unpack(bits_MB: Any, shift_8: Any, vocabulary: int) -> Any:
    """Rows of `Guide.allowed` as booleans [M, vocabulary], where the bits are: arrays of NumPy or tensors.

    `shift_8`: the numbers 0 to 7 of the bits' own type.
    """
    return ((bits_MB[:, :, None] >> shift_8) & 1).reshape(len(bits_MB), -1)[:, :vocabulary] != 0


def _refuse(problem: str) -> NoReturn:
    raise RequestError(
        f"the constraint cannot be followed any further: {problem}", status=400, code="invalid_constraint"
    )


def _clear(bits: Bits, ids: npt.NDArray[np.int64]) -> None:
    ids = ids[ids < 8 * len(bits)]
    np.bitwise_and.at(bits, ids >> 3, ~(np.uint8(1) << (ids & 7).astype(np.uint8)))


def _set(bits: Bits, ids: npt.NDArray[np.int64]) -> None:
    ids = ids[ids < 8 * len(bits)]
    np.bitwise_or.at(bits, ids >> 3, np.uint8(1) << (ids & 7).astype(np.uint8))
