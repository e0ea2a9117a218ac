"""Several adapters in one recorded forward pass: their merged weights one on the other, their tokens in turn.

A linear layer then is one grouped product: the first `ends[0]` tokens by the first weight, those up to
`ends[1]` by the second, and so on. T packed tokens, A weights in the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SPARE = 4
"""A stack may hold this many weights that no token of the step uses: each costs some microseconds a step."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Weights of the linear layers, in the recording's order."""

    numbers: tuple[int, ...]
    """Adapters, ascending."""
    weights: list[Tensor]
    """[A, out, in] each."""


class Stacks:
    """Keeps the last stack: who shares a batch changes from step to step, the adapters seldom."""

    def __init__(self, weights_of: Callable[[int], list[Tensor] | None]) -> None:
        self._weights_of = weights_of
        """Merged weights of an adapter by number; None where they are not kept."""
        self._kept: Stack | None = None

    def of(self, numbers: Sequence[int]) -> Stack | None:
        """A stack with these adapters among others; None when one of them is not merged."""
        kept = self._kept
        if kept is not None and set(numbers) <= set(kept.numbers):
            return kept
        known = () if kept is None else kept.numbers
        wanted = sorted({*numbers, *known})
        if len(wanted) > len(numbers) + SPARE:
            wanted = sorted(numbers)
        found = [self._weights_of(number) for number in wanted]
        weights = [one for one in found if one is not None]
        if len(weights) < len(found):
            return None
        self._kept = Stack(tuple(wanted), [torch.stack(layer) for layer in zip(*weights, strict=True)])
        return self._kept

    def remove(self, number: int) -> None:
        """The adapter goes: nothing of it is kept."""
        if self._kept is not None and number in self._kept.numbers:
            self._kept = None


@dataclass(frozen=True, slots=True)
class AdapterTurns:
    """The packed tokens in the order of a stack's adapters."""

    ends: Tensor
    """[A] int32: where each adapter's tokens end."""
    order: Tensor
    """[T] which packed token stands there."""
    places: Tensor
    """[T] where each packed token stands."""


def adapter_turns(adapter_T: np.ndarray, stack: Stack, device: torch.device) -> AdapterTurns:
    """Every number in `adapter_T` is one of the stack's.

    >>> found = adapter_turns(np.array([7, 4, 7]), Stack((4, 5, 7), []), torch.device("cpu"))
    >>> found.ends.tolist(), found.order.tolist(), found.places.tolist()
    ([1, 1, 3], [1, 0, 2], [1, 0, 2])
    """
    place_T = np.searchsorted(np.array(stack.numbers), adapter_T)
    order = np.argsort(place_T, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    ends = np.bincount(place_T, minlength=len(stack.numbers)).cumsum().astype(np.int32)
    return AdapterTurns(*(torch.from_numpy(array).to(device) for array in (ends, order, places)))
