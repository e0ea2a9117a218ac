"""How many tokens fit into memory at once, known before the first step.

What a forward pass keeps for its backward pass grows with its tokens, by an amount that depends on every
detail of the model. It is not derived from the configuration but counted: one short row goes through the
model while every tensor that autograd keeps is weighed.

    peak = in use + gradients and moments + kept * tokens + max(the logits of a chunk, one layer's backward)

With checkpointing, `kept` is a layer's input for each layer, and one layer's backward includes what it kept
when it was computed again. On a CPU, memory that the allocator keeps for the next request counts as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from art.engine.builtin.free_memory import free_memory
from art.process.resources import give_back_freed_memory, keep_freed_memory
from art.training.critic import Critic
from art.training.device_memory import used_memory
from art.training.known_footprints import KnownFootprints
from art.training.logprobs import CHUNK_ELEMENTS
from art.training.packing.runs import MicroBatch
from art.training.policy import Policy
from art.training.ranks.sharded import is_gathered_weight, own_part

PROBE = 64
"""Tokens of the shorter of two rows; the difference between both is what a token costs."""
STATE = 20
"""Bytes of an adapter's parameter beside its weight: gradient, two moments, and AdamW's work on them."""
MOMENTS = 8
"""The bytes of `STATE` that stay from step to step: AdamW's two moments."""
LOGIT_COPIES = 3
"""The number of copies of a chunk of logits at once: logits, their gradient, intermediate results."""
BACKWARD = 0.6
"""The peak of a layer's backward pass beside what the layer kept, as a share of that."""
HOARD = 2.0
"""How many times what is needed a CPU process holds while it keeps what it frees."""


@dataclass(frozen=True, slots=True)
class MemoryMode:
    """The trade of time for memory."""

    checkpointing: bool = False
    """Layers are computed twice: a third more time."""
    hoarding: bool = False
    """The allocator keeps what is freed. Giving it back costs 35 to 55 % more time. Meant for CPUs only."""


KEEP, HOARDING, TWICE = MemoryMode(), MemoryMode(hoarding=True), MemoryMode(checkpointing=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """The memory of a model's training, in bytes."""

    layers: int
    token: float
    """A token of the forward pass, kept for the backward pass."""
    layer_input: float
    """A token's hidden state: what checkpointing keeps of a layer."""
    logit: float
    """A token's logits, with all that is computed of them at once."""
    chunk: float
    """The same of a whole chunk, which is the most."""
    state: float
    """Gradients and moments of what is trained, while they do not exist yet."""
    quadratic: float = 0.0
    """The bytes of the mask of dense attention for each pair of tokens."""

    def bytes(self, tokens: int, way: MemoryMode) -> int:
        """Needed at the peak beside what is in use already."""
        layer = self.token / max(1, self.layers)
        per_token, work = self.token, BACKWARD * layer
        if way.checkpointing:
            per_token, work = self.layers * self.layer_input, layer + work
        work = max(min(self.logit * tokens, self.chunk), work * tokens)
        passing = per_token * tokens + self.quadratic * tokens**2 + work
        return int(self.state + passing * (HOARD if way.hoarding else 1.0))

    def followed_by(self, other: Footprint) -> Footprint:
        """The footprint of two that pass one after the other, on one base."""
        return replace(self, token=max(self.token, other.token), state=self.state + other.state)


def measure_footprint(
    policy: Policy, trained: Sequence[torch.nn.Parameter], known: KnownFootprints | None = None
) -> Footprint:
    """Count what the policy's forward pass keeps, with these parameters active, unless that is known."""

    def count() -> float:
        return (_bytes_kept(policy, 2 * PROBE) - _bytes_kept(policy, PROBE)) / PROBE

    element = torch.finfo(policy.dtype).bits // 8
    return make_footprint(
        policy.causal_lm.config,
        layers=len(policy.layers),
        token=count() if known is None else known.bytes_per_token(policy, trained, count),
        vocabulary=policy.head.vocab_size,
        element=element,
        trained=sum(parameter.numel() for parameter in trained),
        quadratic=element if policy.kernel == "dense" else 0.0,
    )


def make_footprint(
    config: Any,
    *,
    layers: int,
    token: float,
    vocabulary: int,
    element: int,
    trained: int,
    quadratic: float = 0.0,
) -> Footprint:
    """The footprint of a model with this configuration. `token` was counted; `element`: bytes of a number
    of its weights.
    """
    logits = LOGIT_COPIES * max(4, element)
    return Footprint(
        layers=layers,
        token=token,
        layer_input=config.get_text_config().hidden_size * element,
        logit=logits * vocabulary,
        chunk=logits * max(CHUNK_ELEMENTS, vocabulary),
        state=STATE * trained,
        quadratic=quadratic,
    )


def _bytes_kept(policy: Policy, tokens: int) -> int:
    """Bytes that autograd keeps of a row of so many tokens, weights and masks apart."""
    row, twice = _chain(tokens, policy.head.vocab_size), policy.checkpoint_activations
    policy.checkpoint_activations = False
    try:
        with torch.random.fork_rng():
            storages, (_, plan) = kept_storages(
                lambda: policy.hidden_of(row),
                (*policy.causal_lm.parameters(), *policy.causal_lm.buffers()),
                gathering=policy.sharded,
            )
    finally:
        policy.checkpoint_activations = twice
    if plan.dense_mask is not None:
        storages.pop(storage_address(plan.dense_mask), None)
    return sum(storages.values())


Passed = TypeVar("Passed")


def kept_storages(
    forward: Callable[[], Passed], own: Iterable[torch.Tensor], *, gathering: bool = False
) -> tuple[dict[int, int], Passed]:
    """Bytes of each storage that autograd keeps of a forward pass beside the model's own; what it gave.
    gathering: weights are gathered for it, and given back.
    """
    storages: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if gathering and is_gathered_weight(tensor):
            return tensor
        storages[storage_address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        passed = forward()
    for tensor in own:
        storages.pop(storage_address(own_part(tensor)), None)
    return storages, passed


def storage_address(tensor: torch.Tensor) -> int:
    """Tells storages apart: those without memory, on the device `meta`, by their objects."""
    storage = tensor.untyped_storage()
    return storage.data_ptr() or storage._cdata


def _chain(tokens: int, vocabulary: int) -> MicroBatch:
    """One row of any ids; nothing of it is trained."""
    depth_T = np.arange(tokens)
    return MicroBatch.unscored(depth_T % vocabulary, depth_T, np.full(tokens, tokens))


LOG = logging.getLogger(__name__)

Checkpointing = Literal["auto", "on", "off"]

LARGEST = {"cpu": 8192, "cuda": 32768}
"""The token budget where memory is no concern: larger ones were not faster."""
SMALLEST = 1024
SHARE = 0.85
"""The share of the free memory that is planned with: allocators do not fill theirs to the last byte."""
MEGABYTE = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """The plan of a step's computation."""

    token_budget: int
    way: MemoryMode
    needed: int
    """Bytes at the peak beside those in use."""
    free: int
    used: int

    @property
    def fits(self) -> bool:
        return self.needed <= SHARE * self.free

    @property
    def metrics(self) -> dict[str, float]:
        return {"memory/planned_mb": (self.used + self.needed) / MEGABYTE}

    def __str__(self) -> str:
        layers = "computed twice (checkpointing)" if self.way.checkpointing else "kept"
        return (
            f"micro-batches of {self.token_budget:,} tokens, activations {layers}: about "
            f"{self.needed / MEGABYTE:,.0f} MB of {self.free / MEGABYTE:,.0f} MB free, beside "
            f"{self.used / MEGABYTE:,.0f} MB in use"
        )


class MemoryPlanner:
    """Plans each step of one policy; says so in the log when the plan is another one than before."""

    def __init__(
        self,
        policy: Policy,
        *,
        token_budget: int | None,
        checkpointing: Checkpointing = "auto",
        known: KnownFootprints | None = None,
    ) -> None:
        self._policy = policy
        self._known = known
        self._token_budget = token_budget
        self._checkpointing: Checkpointing = checkpointing
        self._weighed: dict[int, Footprint] = {}
        self._logged: tuple[int, MemoryMode] | None = None

    def plan(
        self,
        trained: Iterable[torch.nn.Parameter],
        *,
        longest: int,
        moments: int | None = None,
        critic: Critic | None = None,
    ) -> MemoryPlan:
        """Plans a step by the number of tokens of its longest path. Sets `policy.checkpoint_activations`.

        The model with these parameters is active. moments: the bytes of those of its optimizer that are not
        in memory yet; None: AdamW's. critic: one that learns beside it. The RNG is left as it was.
        """
        cost = self._weigh(trained, moments)
        if critic is not None and critic.adapter is not None:
            with critic.adapter.computing():
                to_come = 0 if critic.stepped else None
                cost = cost.followed_by(self._weigh(critic.adapter.parameters.values(), to_come))
        made = plan_memory(
            cost,
            token_budget=self._token_budget,
            cpu=self._policy.device.type == "cpu",
            checkpointing=self._checkpointing,
            longest=longest,
            free=free_memory(self._policy.device),
            used=used_memory(self._policy.device),
        )
        if (made.token_budget, made.way) != self._logged:
            self._logged = made.token_budget, made.way
            if self._policy.device.type == "cpu":
                (keep_freed_memory if made.way.hoarding else give_back_freed_memory)()
            if made.fits:
                LOG.info("Memory plan: %s.", made)
            else:
                LOG.warning("Memory plan: %s. This may not fit: lower token_budget.", made)
        self._policy.checkpoint_activations = made.way.checkpointing
        return made

    def _weigh(self, trained: Iterable[torch.nn.Parameter], moments: int | None) -> Footprint:
        parameters = list(trained)
        size = sum(parameter.numel() for parameter in parameters)
        if size not in self._weighed:
            self._weighed[size] = measure_footprint(self._policy, parameters, self._known)
        cost = self._weighed[size]
        return cost if moments is None else replace(cost, state=cost.state - MOMENTS * size + moments)


def plan_memory(
    footprint: Footprint,
    *,
    token_budget: int | None,
    cpu: bool,
    checkpointing: Checkpointing,
    longest: int,
    free: int,
    used: int,
) -> MemoryPlan:
    """The first of the possible ways that fits; the thriftiest if none does.

    A budget that was given stays. Otherwise it is the largest useful one, halved until it fits: powers of
    two, so that a run that is resumed on a machine a little fuller cuts its batches as before. Before layers
    are computed twice, the budget shrinks to two of the longest paths.
    """
    made: list[MemoryPlan] = []
    for way in _ways(cpu, checkpointing):
        for budget in _budgets(
            token_budget, cpu, 1 if way.checkpointing or checkpointing == "off" else 2 * longest
        ):
            # A single path longer than the budget is forwarded whole.
            needed = footprint.bytes(max(budget, longest), way)
            made.append(MemoryPlan(token_budget=budget, way=way, needed=needed, free=free, used=used))
    return next((plan for plan in made if plan.fits), made[-1])


def _ways(cpu: bool, checkpointing: Checkpointing) -> list[MemoryMode]:
    """The fast ones first."""
    keep = [] if checkpointing == "on" else [HOARDING, KEEP] if cpu else [KEEP]
    return keep + ([] if checkpointing == "off" else [TWICE])


def _budgets(token_budget: int | None, cpu: bool, at_least: int) -> list[int]:
    """Returns the budgets from the largest down; at least one."""
    if token_budget is not None:
        return [token_budget]
    largest = LARGEST["cpu" if cpu else "cuda"]
    halves = [largest >> times for times in range(largest.bit_length())]
    return [half for half in halves if half >= max(SMALLEST, at_least)] or [largest]
