"""LoRA on the experts of a mixture, whose matrices lie on each other in two parameters of one module.

Each expert has factors of its own. PEFT keeps those of all experts in two matrices (its `target_parameters`):
A [E r, in] has the rows of expert 0, then of 1, and so on; B [out, r E] has for each rank a column of each
expert. The wrapper of the last parameter is around that of the first, so the tensors of the first are named
`experts.base_layer`, and those of the last `experts`.

A token meets the factors of its own experts only. PEFT adds the products of all experts' factors to all of
their weights, in each pass, and keeps the sums for the backward pass.

Letters: T = tokens, K = experts of a token, S = T K pairs of both in the order of experts, E = experts,
I = input width, O = output width, R = rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import grouped_mm, linear

from art.engine.builtin.peft_folder import INNER, PeftAdapter
from art.errors import CheckpointError, ConfigurationError

_ALIGNED = 16
"""A grouped product wants rows of whole multiples of so many bytes."""


class ExpertFactors(NamedTuple):
    """The LoRA of one stack of matrices."""

    down_ERI: Tensor
    up_EOR: Tensor
    """The scale is in it."""

    def on(self, device: torch.device, dtype: torch.dtype) -> ExpertFactors:
        return ExpertFactors(*(one.to(device, dtype) for one in self))


def stacks_of(module: nn.Module) -> tuple[str, str] | None:
    """Returns the names of an expert module's stacks in their order; None for other modules, and for experts
    that compute in another way than the usual.
    """
    names = tuple(name for name, one in module.named_parameters(recurse=False) if one.ndim == 3)
    usual = hasattr(module, "_apply_gate") and hasattr(module, "is_transposed")
    if usual and names in (("gate_up_proj", "down_proj"), ("up_proj", "down_proj")):
        return names[0], names[1]
    return None


def take_apart(a: Tensor, b: Tensor, experts: int, scale: float) -> ExpertFactors:
    """Returns the factors of each expert in PEFT's two matrices."""
    down_ERI = a.reshape(experts, -1, a.shape[1])
    up_EOR = b.reshape(len(b), -1, experts).permute(2, 0, 1) * scale
    return ExpertFactors(down_ERI, up_EOR.contiguous())


def find_stacks(decoder: nn.Module, dropout: float, name: str) -> list[str]:
    """Returns the ends of the names of the parameters that hold the matrices of experts. name: the model's.

    Raises ConfigurationError where there are none, or with dropout.
    """
    modules = [(key.replace(INNER, ""), one) for key, one in decoder.named_modules()]
    found = {f"{key.rpartition('.')[2]}.{stack}" for key, one in modules for stack in stacks_of(one) or ()}
    if not found:
        raise ConfigurationError(
            f"the LoRA target 'experts' means experts with fused weights, and {name!r} has none that are "
            "known. Leave it out."
        )
    if dropout:
        raise ConfigurationError(
            f"lora_dropout {dropout} does not act on 'experts', which PEFT adapts without. Set it to 0, or "
            "leave the target out."
        )
    return sorted(found)


def run_experts(
    experts: Any,
    loras: Sequence[tuple[Tensor | None, tuple[ExpertFactors, ExpertFactors]]],
    x_TI: Tensor,
    index_TK: Tensor,
    weight_TK: Tensor,
) -> Tensor:
    """Computes what the module does, with LoRAs: for each, the indices of its tokens (None: all), and its
    factors beside the first and the second product.
    """
    stacks = stacks_of(experts)
    assert stacks is not None
    order_S = index_TK.flatten().argsort(stable=True)
    expert_S, token_S = index_TK.flatten()[order_S], order_S // index_TK.shape[1]
    rows = [_rows_of(tokens, token_S, len(x_TI)) for tokens, _ in loras]
    y_SO = x_TI[token_S]
    for place, stack in enumerate(stacks):
        weight_EOI = getattr(experts, stack)
        weight_EOI = weight_EOI.transpose(-2, -1) if experts.is_transposed else weight_EOI
        into_SI, y_SO = y_SO, _product(y_SO, weight_EOI, expert_S)
        if experts.has_bias:
            y_SO = y_SO + getattr(experts, f"{stack}_bias")[expert_S]
        for own_S, (_, factors) in zip(rows, loras, strict=True):
            if len(own_S):
                down_ERI, up_EOR = (one.to(into_SI.dtype) for one in factors[place])
                low_SR = _product(into_SI[own_S], down_ERI, expert_S[own_S])
                y_SO = y_SO.index_add(0, own_S, _product(low_SR, up_EOR, expert_S[own_S]))
        if place == 0:
            y_SO = experts._apply_gate(y_SO) if experts.has_gate else experts.act_fn(y_SO)
    if experts.has_post_expert_norm:
        y_SO = experts.post_expert_norm(y_SO)
    y_SO = y_SO * weight_TK.flatten()[order_S, None]
    places_S = torch.empty_like(order_S)
    places_S[order_S] = torch.arange(len(order_S), device=order_S.device)
    return y_SO[places_S].view(*index_TK.shape, -1).sum(1).to(x_TI.dtype)


def _rows_of(tokens: Tensor | None, token_S: Tensor, count: int) -> Tensor:
    """Returns which pairs are of these tokens."""
    if tokens is None:
        return torch.arange(len(token_S), device=token_S.device)
    mine_T = torch.zeros(count, dtype=torch.bool, device=token_S.device)
    mine_T[tokens] = True
    return mine_T[token_S].nonzero()[:, 0]


def _product(x_SI: Tensor, weight_EOI: Tensor, expert_S: Tensor) -> Tensor:
    """Each row by the matrix of its expert."""
    counts_E = torch.bincount(expert_S, minlength=len(weight_EOI))
    sizes = [size * x_SI.element_size() % _ALIGNED for size in weight_EOI.shape[1:]]
    if x_SI.dtype != torch.float64 and not any(sizes):
        ends_E = counts_E.cumsum(0, dtype=torch.int32)
        return grouped_mm(x_SI, weight_EOI.transpose(-2, -1), offs=ends_E)
    pieces = x_SI.split(counts_E.tolist())
    return torch.cat(
        [linear(one, weight) for one, weight in zip(pieces, weight_EOI, strict=True) if len(one)]
    )


def join_experts(wrapper: Any) -> None:
    """Lets the outer one of PEFT's two wrappers around experts compute so, with its active adapter."""
    wrapper.forward = partial(_forward, wrapper)


def _forward(wrapper: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    experts = wrapper.get_base_layer()
    names = [name for name in wrapper.active_adapters if name in wrapper.lora_A]
    if wrapper.disable_adapters or not names:
        computed: Tensor = experts(hidden_states, top_k_index, top_k_weights)
        return computed
    first, last = (
        take_apart(
            one.lora_A[names[0]].weight, one.lora_B[names[0]].weight, one.num_experts, one.scaling[names[0]]
        )
        for one in (wrapper.base_layer, wrapper)
    )
    return run_experts(experts, [(None, (first, last))], hidden_states, top_k_index, top_k_weights)


class PassRouting(Protocol):
    """The adapters of the engine's running pass: `art.engine.builtin.module_pass.Routing`."""

    groups: list[tuple[int, Tensor | None]]


class ExpertsHook:
    """Computes a layer's experts in the engine, with the adapters of the running pass."""

    def __init__(self, routing: PassRouting, experts: nn.Module) -> None:
        """Takes the place of the module's forward."""
        self._routing = routing
        self._experts, self._own = experts, experts.forward
        self.adapters: dict[int, tuple[ExpertFactors, ExpertFactors]] = {}
        experts.forward = self

    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        loras = [
            (tokens, self.adapters[number])
            for number, tokens in self._routing.groups
            if number in self.adapters
        ]
        if not loras:
            computed: Tensor = self._own(hidden_states, top_k_index, top_k_weights)
            return computed
        return run_experts(self._experts, loras, hidden_states, top_k_index, top_k_weights)


def read_factors(
    model: nn.Module, adapter: PeftAdapter, *, device: torch.device, dtype: torch.dtype
) -> dict[str, tuple[ExpertFactors, ExpertFactors]]:
    """Returns the factors of each expert module that an adapter changes, by its name.

    Raises CheckpointError where they do not fit the model.
    """
    found = {}
    for name in adapter.weights:
        if not adapter.is_stacked(name) or name.endswith(INNER):
            continue
        try:
            module = model.get_submodule(name)
        except AttributeError:
            module = nn.Module()
        stacks = stacks_of(module)
        if stacks is None or not all(map(partial(_fits, module), stacks, _matrices(adapter, name))):
            raise CheckpointError(
                f"adapter {str(adapter.path)!r} has weights of experts for {name!r} that do not fit the base "
                "model: it was trained on another model"
            )
        experts = len(getattr(module, stacks[0]))
        first, last = (
            take_apart(a.float(), b.float(), experts, adapter.scale(len(a) // experts))
            for a, b in _matrices(adapter, name)
        )
        found[name] = (first.on(device, dtype), last.on(device, dtype))
    return found


def _matrices(adapter: PeftAdapter, name: str) -> list[tuple[Tensor, Tensor]]:
    """Returns PEFT's two matrices beside the first and the second product of the experts."""
    return [adapter.weights[name + INNER], adapter.weights[name]]


def _fits(module: Any, stack: str, matrices: tuple[Tensor, Tensor]) -> bool:
    a, b = matrices
    experts, out, size = getattr(module, stack).shape
    if module.is_transposed:
        out, size = size, out
    whole = len(a) > 0 and len(a) % experts == 0
    return whole and a.shape[1] == size and tuple(b.shape) == (out, len(a))
