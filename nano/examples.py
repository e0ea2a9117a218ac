"""A training example:

ids of one dialog, what each position should predict, and how batches of them are scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3ForCausalLM

from art.rendering.nano import NanoRenderer


@dataclass(frozen=True, kw_only=True)
class Example:
    """`is_reply[i]`: id i is what the model samples. `choices[i]`: id i was one draw from this distribution
    over ids, which is learned instead of the draw."""

    ids: list[int]
    is_reply: list[bool]
    choices: dict[int, dict[int, float]] = field(default_factory=dict)


def from_dialog(
    renderer: NanoRenderer,
    messages: list[dict[str, Any]],
    *,
    tools: list[dict[str, Any]] | None = None,
    first_tokens: Sequence[dict[int, float]] = (),
) -> Example:
    """The example of a whole dialog; `first_tokens[k]` is the distribution of the k-th reply's first id."""
    rendered = renderer.render(messages, tools=tools)
    sampled = rendered.sampled_mask
    starts = [i for i, now in enumerate(sampled) if now and not sampled[i - 1]]
    choices = dict(zip(starts, first_tokens, strict=False))
    return Example(ids=rendered.token_ids, is_reply=sampled, choices=choices)


def padded(examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, whether each is a reply's, and whether it is one at all: (B, T) each."""
    width = max(len(example.ids) for example in examples)
    ids_BT = torch.zeros(len(examples), width, dtype=torch.long)
    reply_BT = torch.zeros(len(examples), width, dtype=torch.bool)
    real_BT = torch.zeros(len(examples), width, dtype=torch.bool)
    for row, example in enumerate(examples):
        size = len(example.ids)
        ids_BT[row, :size] = torch.tensor(example.ids)
        reply_BT[row, :size] = torch.tensor(example.is_reply)
        real_BT[row, :size] = True
    return ids_BT, reply_BT, real_BT


def batch_loss(model: Qwen3ForCausalLM, examples: Sequence[Example], other_weight: float) -> Tensor:
    """Mean loss of the replies' ids + `other_weight` x that of all others.

    The others matter: predicting the next board teaches to read the board long before the noisy replies do.
    """
    ids_BT, reply_BT, real_BT = padded(examples)
    logprobs = F.log_softmax(model(input_ids=ids_BT).logits[:, :-1], dim=-1)
    losses = -logprobs.gather(-1, ids_BT[:, 1:, None])[..., 0]
    soft = [
        (row, at - 1, token, share)
        for row, example in enumerate(examples)
        for at, choice in example.choices.items()
        for token, share in choice.items()
    ]
    if soft:
        rows, ats, tokens, shares = zip(*soft, strict=True)
        rows_S, ats_S = torch.tensor(rows), torch.tensor(ats)
        replaced = torch.zeros_like(losses, dtype=torch.bool)
        replaced[rows_S, ats_S] = True
        terms = -logprobs[rows_S, ats_S, torch.tensor(tokens)] * torch.tensor(shares)
        soft_losses = torch.zeros_like(losses).index_put((rows_S, ats_S), terms, accumulate=True)
        losses = torch.where(replaced, soft_losses, losses)
    reply, other = reply_BT[:, 1:], real_BT[:, 1:] & ~reply_BT[:, 1:]
    loss = losses[reply].mean()
    return loss + other_weight * losses[other].mean() if other_weight and other.any() else loss
