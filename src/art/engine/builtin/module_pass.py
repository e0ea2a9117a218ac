"""The pass of any model through its own modules, with LoRA adapters on its linear layers, many live at once.

A layer that adapters touch has a hook: after its own product for all tokens comes each adapter's low-rank
product for its tokens only. Experts that adapters touch compute through an extension.

T packed tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from art.engine.builtin.peft_folder import PeftAdapter, check_layer
from art.engine.builtin.step_batch import Attends
from art.extensions import LORA, load_extension


@dataclass(slots=True)
class Routing:
    """The adapters of the running pass. Shared by all hooks, set before each pass."""

    groups: list[tuple[int, Tensor | None]] = field(default_factory=list)
    """(adapter, indices of its tokens); None: all tokens are its."""

    def set(self, adapter_T: np.ndarray, device: torch.device) -> None:
        numbers = np.unique(adapter_T).tolist()
        if len(numbers) == 1:
            self.groups = [(numbers[0], None)]
            return
        indices = [np.flatnonzero(adapter_T == number) for number in numbers]
        self.groups = [(n, torch.from_numpy(at).to(device)) for n, at in zip(numbers, indices, strict=True)]


class AdapterHook:
    """Adds the adapters' products to that of a linear layer."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self.adapters: dict[int, tuple[Tensor, Tensor]] = {}
        """The matrices by the adapter's number: A [r, in], and B [out, r] with the scale in it."""

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        for number, index in self._routing.groups:
            if number not in self.adapters:
                continue
            (x, *_), (a, b) = inputs, self.adapters[number]
            if index is None:
                out = out.add_(linear(linear(x, a), b))
            else:
                out = out.index_add_(1, index, linear(linear(x.index_select(1, index), a), b))
        return out


class ModulePass:
    """The pass of one model, with its adapters."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module = module
        self._where = {"device": device, "dtype": module.get_input_embeddings().weight.dtype}
        """The device and the dtype in which layers compute; a quantized weight has another dtype."""
        self._routing = Routing()
        self._hooks: dict[str, Any] = {}
        """The hooks by module name: those of linear layers, and what computes experts (`lora.experts`)."""

    def add(self, number: int, adapter: PeftAdapter) -> None:
        """Raises: CheckpointError when the adapter does not fit the model; then nothing was changed."""
        linear = [name for name in adapter.weights if not adapter.is_stacked(name)]
        layers = {name: check_layer(self._module, adapter, name) for name in linear}
        experts: Any = len(linear) < len(adapter.weights) and load_extension(LORA, "experts")
        factors = experts.read_factors(self._module, adapter, **self._where) if experts else {}
        for name, layer in layers.items():
            if name not in self._hooks:
                self._hooks[name] = AdapterHook(self._routing)
                layer.register_forward_hook(self._hooks[name])
            a, b = adapter.weights[name]
            scaled = b.float() * adapter.scale(len(a))
            self._hooks[name].adapters[number] = a.to(**self._where), scaled.to(**self._where)
        for name, of_experts in factors.items():
            if name not in self._hooks:
                self._hooks[name] = experts.ExpertsHook(self._routing, self._module.get_submodule(name))
            self._hooks[name].adapters[number] = of_experts

    def remove(self, number: int) -> None:
        """The adapter goes: nothing of it is kept."""
        for hook in self._hooks.values():
            hook.adapters.pop(number, None)

    def run(
        self, ids_T: Tensor, positions_T: Tensor, wanted: Tensor, adapter_T: np.ndarray, attention: Attends
    ) -> Tensor:
        """Logits [len(wanted), V] of the wanted packed tokens."""
        self._routing.set(adapter_T, self._where["device"])
        out = self._module(
            input_ids=ids_T[None],
            position_ids=positions_T[None],
            use_cache=False,
            logits_to_keep=wanted,
            art_batch=attention,
        )
        return out.logits[0]
