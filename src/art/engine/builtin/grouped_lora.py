"""LoRA beside joined products: linear layers of one input are one product, and so are their adapters.

A `Joint` stands for such layers, q, k and v of an attention for instance. For one adapter their A matrices
lie beside each other, their B matrices are the blocks of one:

    x [T, in] -> x @ A [T, 3r] -> @ B [T, out_q + out_k + out_v]    B is zero where q's ranks meet k's outputs

Tokens of several adapters share a pass. They are put in the order of their adapters, those without one last;
each run of tokens then meets its own matrices in one grouped product, two a joint whatever their number.

T packed tokens, N adapters of a step, K ranks of a joint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import grouped_mm

from art.engine.builtin.peft_folder import PeftAdapter, check_layer

BASE = 0
"""The number of the base model, which has no adapter."""
SPARE = 4
"""A stack may hold this many adapters that no token of the step uses."""
ALIGNED = 16
"""A grouped product wants rows of whole multiples of so many bytes."""

Pair = tuple[Tensor, Tensor]
"""A [in, K] and B [K, out] of one adapter in one joint, or [N, in, K] and [N, K, out] of several."""


@dataclass(frozen=True, slots=True)
class Joint:
    """The linear layers of one input, by module name; `outs` are their output sizes."""

    names: tuple[str, ...]
    outs: tuple[int, ...]
    size: int
    """The size of the input."""

    def pair(self, adapter: PeftAdapter) -> Pair | None:
        """The adapter's matrices in float32, with its scale; None where it touches none of these layers."""
        found = [
            (sum(self.outs[:place]), *adapter.weights[name])
            for place, name in enumerate(self.names)
            if name in adapter.weights
        ]
        if not found:
            return None
        a = torch.cat([a.float() for _, a, _ in found]).t()
        b = torch.zeros(a.shape[1], sum(self.outs))
        rank = 0
        for first, one, other in found:
            r = len(one)
            b[rank : rank + r, first : first + len(other)] = other.float().t() * adapter.scale(r)
            rank += r
        return a, b


@dataclass(frozen=True, slots=True)
class Turns:
    """The packed tokens in the order of their adapters, and the adapters' matrices by joint."""

    pairs: list[Pair | None]
    tokens: int
    """That have an adapter; they come first."""
    ends: Tensor | None = None
    """[N] int32, where each adapter's tokens end; None for one adapter."""
    order: Tensor | None = None
    """[T] which packed token stands there; None: in the batch's order."""
    places: Tensor | None = None
    """[T] where each packed token stands."""

    @property
    def is_whole(self) -> bool:
        """Returns whether one adapter has all tokens."""
        return self.order is None

    def add_to(self, y: Tensor, x: Tensor, joint: int) -> Tensor:
        """Adds the adapters' part of a joint to its product y [T, out], in place."""
        pair = self.pairs[joint]
        if pair is None:
            return y
        a, b = pair
        if self.tokens < len(x):
            self._add(y[: self.tokens], x[: self.tokens], a, b)
        else:
            self._add(y, x, a, b)
        return y

    def _add(self, y: Tensor, x: Tensor, a: Tensor, b: Tensor) -> None:
        if self.ends is None:
            y.addmm_(x @ a, b)
        else:
            y.add_(grouped_mm(grouped_mm(x, a, offs=self.ends), b, offs=self.ends))


@dataclass(frozen=True, slots=True)
class Stack:
    """The matrices of several adapters on each other, filled up with zeros to one rank."""

    numbers: tuple[int, ...]
    """Ascending."""
    pairs: list[Pair | None]


class GroupedLora:
    """The adapters of one model by number, over its joints."""

    def __init__(
        self, skeleton: nn.Module, joints: Sequence[Joint], dtype: torch.dtype, device: torch.device
    ):
        self._skeleton = skeleton
        """The model's modules: which layers there are, and of what size."""
        self._joints = joints
        self._where = {"dtype": dtype, "device": device}
        self._multiple = ALIGNED // dtype.itemsize
        self._pairs: dict[int, list[Pair | None]] = {}
        self._stack: Stack | None = None
        """The last: the requests of a batch change from step to step, the adapters seldom."""

    def add(self, number: int, adapter: PeftAdapter) -> Sequence[Pair | None]:
        """Returns its matrices by joint. Raises: CheckpointError when it does not fit the model; then nothing
        was changed.
        """
        for name in adapter.weights:
            check_layer(self._skeleton, adapter, name)
        pairs = [joint.pair(adapter) for joint in self._joints]
        self._pairs[number] = [
            None if pair is None else (pair[0].to(**self._where), pair[1].to(**self._where)) for pair in pairs
        ]
        return self._pairs[number]

    def remove(self, number: int) -> None:
        """The adapter goes: nothing of it is kept."""
        self._pairs.pop(number, None)
        if self._stack is not None and number in self._stack.numbers:
            self._stack = None

    def turns(self, adapter_T: np.ndarray) -> Turns | None:
        """Returns the adapters' part of a pass over these tokens; None if they all are the base model's."""
        first = int(adapter_T[0])
        if (adapter_T == first).all():
            return None if first == BASE else Turns(self._pairs[first], len(adapter_T))
        numbers = [int(number) for number in np.unique(adapter_T) if number != BASE]
        stacked, pairs = tuple(numbers), self._pairs[numbers[0]]
        if len(numbers) > 1:
            stack = self._stack_of(numbers)
            stacked, pairs = stack.numbers, stack.pairs
        place_T = np.searchsorted(stacked, adapter_T)
        place_T[adapter_T == BASE] = len(stacked)
        order = np.argsort(place_T, kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        ends = np.bincount(place_T, minlength=len(stacked) + 1).cumsum()[:-1].astype(np.int32)
        on = [torch.from_numpy(array).to(self._where["device"]) for array in (ends, order, places)]
        return Turns(pairs, int(ends[-1]), None if len(numbers) == 1 else on[0], on[1], on[2])

    def _stack_of(self, numbers: Sequence[int]) -> Stack:
        """A stack with these adapters among others."""
        known = () if self._stack is None else self._stack.numbers
        if self._stack is not None and set(numbers) <= set(known):
            return self._stack
        wanted = sorted({*numbers, *known})
        if len(wanted) > len(numbers) + SPARE:
            wanted = sorted(numbers)
        columns = zip(*(self._pairs[number] for number in wanted), strict=True)
        pairs = [
            self._on_each_other(joint, pairs) for joint, pairs in zip(self._joints, columns, strict=True)
        ]
        self._stack = Stack(tuple(wanted), pairs)
        return self._stack

    def _on_each_other(self, joint: Joint, pairs: Sequence[Pair | None]) -> Pair | None:
        ranks = [0 if pair is None else pair[0].shape[1] for pair in pairs]
        if not any(ranks):
            return None
        rank = -(-max(ranks) // self._multiple) * self._multiple
        a = torch.zeros(len(pairs), joint.size, rank, **self._where)
        b = torch.zeros(len(pairs), rank, sum(joint.outs), **self._where)
        for place, pair in enumerate(pairs):
            if pair is not None:
                a[place, :, : ranks[place]], b[place, : ranks[place]] = pair
        return a, b
