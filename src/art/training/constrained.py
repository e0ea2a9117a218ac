"""The masks that constrained completions were drawn under, found again by following their ids.

Letters: E = loss entries, K = different masks, B = bytes of a mask, one bit for each id of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from art.constraints.grammar import Grammars
from art.constraints.guide import Guide
from art.engine.protocol import Constraint
from art.errors import RequestError, TokenMismatchError
from art.samples.types import LossEntries, TokenTree
from art.wire.training import SamplingSpec


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Masks:
    """`bits_KB[mask_E[e]]` are the ids among which entry e was drawn; -1: all.

    Equal masks are kept once: within a text of JSON nearly all are.
    """

    mask_E: npt.NDArray[np.int64]
    bits_KB: npt.NDArray[np.uint8]


def follow(
    tree: TokenTree,
    entries: LossEntries,
    specs: Sequence[SamplingSpec],
    grammars: Grammars,
    vocabulary: int,
) -> Masks | None:
    """The masks of a batch; None where no distribution has a constraint.

    Raises TokenMismatchError for an id that its constraint does not allow, naming rollout and place.
    """
    constrained = [number for number, spec in enumerate(specs) if spec.constraint is not None]
    rows = np.flatnonzero(np.isin(entries.sampling_E, constrained))
    if not len(rows):
        return None
    if entries.place_E is None:
        raise TokenMismatchError("A distribution has a constraint, and entry_place_E is missing.")
    mask_E = np.full(len(entries), -1, np.int64)
    numbers: dict[bytes, int] = {}
    walk = _Walk(tree, entries, specs, grammars)
    for entry in rows.tolist():
        try:
            bits = walk.step(entry).allowed(vocabulary)
        except RequestError as error:
            raise walk.broken(entry, str(error)) from error
        token = int(tree.tokens_T[entries.token_E[entry]])
        if not bits[token >> 3] >> (token & 7) & 1:
            raise walk.broken(entry, f"id {token} is not among those that it allows")
        mask_E[entry] = numbers.setdefault(bits.tobytes(), len(numbers))
    table = np.frombuffer(b"".join(numbers), np.uint8).reshape(len(numbers), -1)
    return Masks(mask_E=mask_E, bits_KB=table)


class _Walk:
    """Follows completion after completion: their entries lie together, in the order of sampling."""

    def __init__(
        self, tree: TokenTree, entries: LossEntries, specs: Sequence[SamplingSpec], grammars: Grammars
    ) -> None:
        self._tree, self._entries, self._specs, self._grammars = tree, entries, specs, grammars
        assert entries.place_E is not None
        self._place_E = entries.place_E
        self._guide: Guide | None = None
        self._before = -1

    def step(self, entry: int) -> Guide:
        """The guide of the entry's completion, moved on to the entry."""
        place, node = int(self._place_E[entry]), int(self._entries.token_E[entry])
        if place == 0:
            spec = self._specs[int(self._entries.sampling_E[entry])]
            assert spec.constraint is not None
            constraint = Constraint(kind=spec.constraint.kind, text=spec.constraint.text)
            self._guide = self._grammars.open(constraint, spec.stop_token_ids)
        elif self._guide is None or not self._follows(entry, place, node):
            raise self.broken(entry, "the ids before it are not in the batch")
        else:
            self._guide.advance(int(self._tree.tokens_T[self._tree.parent_T[node]]))
        self._before = entry
        return self._guide

    def _follows(self, entry: int, place: int, node: int) -> bool:
        before, entries = self._before, self._entries
        return (
            entry == before + 1
            and place == int(self._place_E[before]) + 1
            and int(self._tree.parent_T[node]) == int(entries.token_E[before])
            and entries.sampling_E[entry] == entries.sampling_E[before]
        )

    def broken(self, entry: int, problem: str) -> TokenMismatchError:
        return TokenMismatchError(
            f"Sampled id {int(self._place_E[entry])} of a completion of rollout number "
            f"{int(self._entries.sequence_E[entry])} cannot be trained under its constraint: {problem}."
        )
