"""Other ids in the places of a row: their logprobs, and draws.

Letters: P = places, V = vocabulary, M = named ids, K = draws in a place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from art.wire.engine import Alternatives

_COLDEST = 1e-30
"""The temperature in place of 0: the most probable ids share the probability."""


class OtherIds:
    """The alternatives of one row, from slices of its logprobs."""

    def __init__(self, asked: Alternatives, device: torch.device) -> None:
        self._draws, self._temperature = asked.draws, max(asked.temperature, _COLDEST)
        self._place_M, self._id_M = torch.tensor(asked.ids, device=device).long().reshape(-1, 2).unbind(1)
        self._dice = torch.Generator(device)
        self._dice.seed() if asked.seed is None else self._dice.manual_seed(asked.seed)
        self.named_M = torch.zeros(len(asked.ids), device=device)
        """The logprobs of the named ids."""
        self.drawn: list[list[tuple[int, float]]] = []
        """The draws in each place, with their logprobs."""

    def add(self, first: int, logprobs_PV: Tensor) -> None:
        """Takes the logprobs of the places from `first + 1` on."""
        row_M = self._place_M - 1 - first
        inside_M = (row_M >= 0) & (row_M < len(logprobs_PV))
        self.named_M[inside_M] = logprobs_PV[row_M[inside_M], self._id_M[inside_M]]
        if self._draws:
            below_PV = logprobs_PV - logprobs_PV.amax(-1, keepdim=True)
            probability_PV = torch.softmax(below_PV / self._temperature, -1)
            id_PK = torch.multinomial(probability_PV, self._draws, replacement=True, generator=self._dice)
            self.drawn += map(pairs_of, id_PK.tolist(), logprobs_PV.gather(1, id_PK).tolist())


def pairs_of(ids: list[int], logprobs: list[float]) -> list[tuple[int, float]]:
    """Ids with their logprobs."""
    return list(zip(ids, logprobs, strict=True))
