"""LoRA adapters: read as PEFT writes them, many live at once over one base model.

A target `nn.Linear` is replaced by an `AdapterLinear` when the first adapter touches it. The base product is
computed once for all tokens, each adapter's low-rank product for its own tokens only. Where the model is
small, merged weights are used instead: one product a token, as fast as the base model; and where its forward
pass is recorded, adapters that share a step do so in one grouped product a layer (`Stacks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from art.engine.builtin.peft_folder import PeftAdapter
from art.engine.builtin.recorded_forward import FlatForward, Stack, Stacks
from art.errors import CheckpointError

BASE = 0
"""The number of the base model, which has no adapter."""


@dataclass(slots=True)
class Routing:
    """The adapter of each packed token of the running step. Shared by all layers, set before each forward."""

    single: int | None = BASE
    groups: list[tuple[int, Tensor]] = field(default_factory=list)
    """When there are several: (adapter, indices of its tokens)."""

    def set(self, adapter_T: np.ndarray, device: torch.device) -> None:
        first = int(adapter_T[0])
        self.single = first if bool((adapter_T == first).all()) else None
        self.groups = []
        if self.single is None:
            for adapter in np.unique(adapter_T):
                index = torch.from_numpy(np.flatnonzero(adapter_T == adapter)).to(device)
                self.groups.append((int(adapter), index))


@dataclass(slots=True)
class LoraWeights:
    """One adapter's part in one layer: a [r, in], b [out, r] with the scale in it."""

    a: Tensor
    b: Tensor
    merged: Tensor | None

    def delta(self, x: Tensor) -> Tensor:
        return linear(linear(x, self.a), self.b)


class AdapterLinear(nn.Module):
    """A linear layer with the adapters that touch it, by number."""

    def __init__(self, base: nn.Linear, routing: Routing) -> None:
        super().__init__()
        self.base = base
        self.routing = routing
        self.adapters: dict[int, LoraWeights] = {}

    @property
    def weight(self) -> Tensor:
        """The base layer's weight, because some models read its device or type."""
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        single = self.routing.single
        if single is None:
            return self._forward_mixed(x)
        adapter = self.adapters.get(single)
        if adapter is None:
            return self.base(x)
        if adapter.merged is not None:
            return linear(x, adapter.merged, self.base.bias)
        return self.base(x).add_(adapter.delta(x))

    def _forward_mixed(self, x: Tensor) -> Tensor:
        kept = [self._whole_weight(number) for number, _ in self.routing.groups]
        weights = [weight for weight in kept if weight is not None]
        if len(weights) == len(kept):
            return self._side_by_side(x, weights)
        out = self.base(x)
        for number, index in self.routing.groups:
            adapter = self.adapters.get(number)
            if adapter is not None:
                out.index_add_(1, index, adapter.delta(x.index_select(1, index)))
        return out

    def _whole_weight(self, number: int) -> Tensor | None:
        """The one weight that is an adapter's product; None where it is not kept merged."""
        adapter = self.adapters.get(number)
        return self.base.weight if adapter is None else adapter.merged

    def _side_by_side(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        """Each adapter's tokens through its merged weight: one product a token, as when it runs alone."""
        out = x.new_empty((*x.shape[:-1], self.base.out_features))
        for (_, index), weight in zip(self.routing.groups, weights, strict=True):
            out.index_copy_(1, index, linear(x.index_select(1, index), weight, self.base.bias))
        return out


class AdapterLayers:
    """The linear layers of one model that adapters have touched."""

    def __init__(
        self, model: nn.Module, routing: Routing, merge_bytes: int, flat: FlatForward | None
    ) -> None:
        """`flat` is the recorded forward pass of the model, if it has one."""
        self.model = model
        self.routing = routing
        self.merge_bytes = merge_bytes
        self.flat = flat
        self.layers: dict[str, AdapterLinear] = {}
        self._flat_weights: dict[int, list[Tensor] | None] = {}
        self._stacks = Stacks(self.flat_weights)

    def add(self, number: int, adapter: PeftAdapter) -> None:
        """Raises: CheckpointError when the adapter does not fit the model; then nothing was changed."""
        bases = {name: self._base(name, adapter) for name in adapter.weights}
        merge = self._merges(bases)
        for name, base in bases.items():
            a, b = adapter.weights[name]
            scaled = b.float() * adapter.scale(a.shape[0])
            merged = None
            if merge:
                merged = base.weight + (scaled @ a.float()).to(base.weight)
            layer = self.layers.get(name) or self._wrap(name, base)
            layer.adapters[number] = LoraWeights(a.to(base.weight), scaled.to(base.weight), merged)

    def flat_weights(self, number: int) -> list[Tensor] | None:
        """The weights with which the recorded forward pass is this adapter's; None when it is not merged."""
        if self.flat is None:
            return None
        if number == BASE:
            return self.flat.base_weights
        if number not in self._flat_weights:
            self._flat_weights[number] = self._merged_weights(self.flat, number)
        return self._flat_weights[number]

    def stack(self, numbers: Sequence[int]) -> Stack | None:
        """Returns the inputs of the recorded forward pass of several adapters; None if it cannot have them.

        A stack copies all linear layers once for each adapter, also those that few or none of them touch.
        """
        if self.flat is None or not self.flat.takes_several:
            return None
        if sum(weight.nbytes for weight in self.flat.base_weights) > self.merge_bytes:
            return None
        return self._stacks.stack_of(numbers)

    def _merged_weights(self, flat: FlatForward, number: int) -> list[Tensor] | None:
        weights = dict(zip(flat.linears, flat.base_weights, strict=True))
        for name, layer in self.layers.items():
            adapter = layer.adapters.get(number)
            if adapter is not None:
                if adapter.merged is None:
                    return None
                weights[name] = adapter.merged
        return list(weights.values())

    def remove(self, number: int) -> None:
        self._flat_weights.pop(number, None)
        self._stacks.remove(number)
        for layer in self.layers.values():
            layer.adapters.pop(number, None)

    def _merges(self, bases: dict[str, nn.Linear]) -> bool:
        """Returns whether weights are merged: only float32, because a merged bfloat16 weight would lose what
        the adapter has learned.
        """
        size = sum(base.weight.nbytes for base in bases.values())
        return size <= self.merge_bytes and all(base.weight.dtype == torch.float32 for base in bases.values())

    def _base(self, name: str, adapter: PeftAdapter) -> nn.Linear:
        if name in self.layers:
            base: nn.Module = self.layers[name].base
        else:
            try:
                base = self.model.get_submodule(name)
            except AttributeError as error:
                raise CheckpointError(
                    f"adapter {str(adapter.path)!r} has weights for {name!r}, which the base model does not "
                    "have: it was trained on another model"
                ) from error
        if not isinstance(base, nn.Linear):
            raise CheckpointError(
                f"adapter {str(adapter.path)!r} targets {name!r}, a {type(base).__name__}; "
                "only Linear layers work"
            )
        if base is self.model.get_output_embeddings():
            raise CheckpointError(
                f"adapter {str(adapter.path)!r} targets the output layer {name!r}: not supported"
            )
        a, b = adapter.weights[name]
        if a.shape[1] != base.in_features or b.shape[0] != base.out_features or a.shape[0] != b.shape[1]:
            raise CheckpointError(
                f"adapter {str(adapter.path)!r}, layer {name!r}: A {tuple(a.shape)} and B {tuple(b.shape)} "
                f"do not fit a layer from {base.in_features} to {base.out_features}: "
                "it was trained on another model"
            )
        return base

    def _wrap(self, name: str, base: nn.Linear) -> AdapterLinear:
        parent, _, leaf = name.rpartition(".")
        layer = AdapterLinear(base, self.routing)
        setattr(self.model.get_submodule(parent), leaf, layer)
        self.layers[name] = layer
        return layer
