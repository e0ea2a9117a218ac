"""What training a model costs in memory: bytes a token, and in all.

What a forward pass keeps for its backward pass grows with its tokens, by an amount that depends on every
detail of the model. It is not derived from the configuration but counted: one short row goes through the
model while every tensor that autograd keeps is weighed.

    peak = in use + gradients and moments + kept * tokens + max(the logits of a chunk, one layer's backward)

With checkpointing, `kept` is a layer's input for each layer, and one layer's backward includes what it kept
when it was computed again. On a CPU, memory that the allocator keeps for the next request counts as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from art.training.logprobs import CHUNK_ELEMENTS
from art.training.packing.types import MicroBatch
from art.training.policy import Policy

PROBE = 64
"""Tokens of the shorter of two rows; the difference between both is what a token costs."""
STATE = 20
"""Bytes of an adapter's parameter beside its weight: gradient, two moments, and AdamW's work on them."""
MOMENTS = 8
"""Of these, what stays from step to step."""
LOGIT_COPIES = 3
"""Of a chunk of logits at once: themselves, their gradient, what is computed on the way."""
BACKWARD = 0.6
"""Of what a layer kept, its backward pass needs so much more at its height."""
HOARD = 2.0
"""How many times what is needed a CPU process holds while it keeps what it frees."""


@dataclass(frozen=True, slots=True)
class Way:
    """How to trade time for memory."""

    checkpointing: bool = False
    """Layers are computed twice: a third more time."""
    hoarding: bool = False
    """The allocator keeps what is freed. Giving it back costs 35 to 55 % more time. Meant for CPUs only."""


KEEP, HOARDING, TWICE = Way(), Way(hoarding=True), Way(checkpointing=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """What a model's training costs, in bytes."""

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
    """Of each pair of tokens: the mask of dense attention."""

    def bytes(self, tokens: int, way: Way) -> int:
        """Needed at the peak beside what is in use already."""
        layer = self.token / max(1, self.layers)
        kept, work = self.token, BACKWARD * layer
        if way.checkpointing:
            kept, work = self.layers * self.layer_input, layer + work
        work = max(min(self.logit * tokens, self.chunk), work * tokens)
        passing = kept * tokens + self.quadratic * tokens**2 + work
        return int(self.state + passing * (HOARD if way.hoarding else 1.0))


def weigh(policy: Policy, trained: int) -> Footprint:
    """Count what the policy's forward pass keeps, with an adapter of `trained` parameters active."""
    short, long = _kept(policy, PROBE), _kept(policy, 2 * PROBE)
    config = policy.causal_lm.config.get_text_config()
    element = torch.finfo(policy.dtype).bits // 8
    logits = LOGIT_COPIES * max(4, element)
    return Footprint(
        layers=len(policy.layers),
        token=(long - short) / PROBE,
        layer_input=config.hidden_size * element,
        logit=logits * policy.head.vocab_size,
        chunk=logits * max(CHUNK_ELEMENTS, policy.head.vocab_size),
        state=STATE * trained,
        quadratic=element if policy.kernel == "dense" else 0.0,
    )


def _kept(policy: Policy, tokens: int) -> int:
    """Bytes that autograd keeps of a row of so many tokens, weights and masks apart."""
    storages: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    row, twice = _chain(tokens, policy.head.vocab_size), policy.checkpoint_activations
    policy.checkpoint_activations = False
    try:
        with torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            hidden_TD, plan = policy.hidden_of(row)
    finally:
        policy.checkpoint_activations = twice
    own = [*policy.causal_lm.parameters(), *policy.causal_lm.buffers()]
    if plan.dense_mask is not None:
        own.append(plan.dense_mask)
    for tensor in own:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    del hidden_TD
    return sum(storages.values())


def _chain(tokens: int, vocabulary: int) -> MicroBatch:
    """One row of any ids; nothing of it is trained."""
    none, depth_T = np.zeros(0, np.int64), np.arange(tokens)
    return MicroBatch(
        tokens_T=depth_T % vocabulary,
        depth_T=depth_T,
        end_T=np.full(tokens, tokens),
        repeated=0,
        predictor_P=none,
        target_predictor_N=none,
        target_id_N=none,
        entry_E=none,
        entry_target_E=none,
    )
