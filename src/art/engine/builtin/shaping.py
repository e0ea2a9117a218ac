"""Logits of the rows whose distribution is shaped from outside: biased, penalised for what was there before,
and masked by a constraint or by `min_tokens`. In this order, which is vLLM's.

R rows, M of them shaped, V vocabulary. The other rows' logits are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch import device as Device

from art.constraints.guide import Bits, Guide, unpack
from art.engine.limits import check_bias
from art.engine.protocol import Sampling
from art.errors import RequestError


@dataclass(frozen=True, slots=True, eq=False)
class Bias:
    """What is added to some ids' logits."""

    ids: Tensor
    values: Tensor


class Penalties:
    """What ids that were there before lose or gain, and how often each was. (Keskar et al., CTRL,
    arXiv 1909.05858: repetition. OpenAI's API: frequency and presence.)
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._sampling, self._prompt = sampling, prompt
        self._count_V: Tensor | None = None
        self._known_V: Tensor | None = None

    def count(self, token: int) -> None:
        """An id was sampled."""
        assert self._count_V is not None and self._known_V is not None
        self._count_V[token] += 1
        self._known_V[token] = True

    def apply(self, logits_V: Tensor) -> Tensor:
        """The penalised logits of its next id."""
        if self._count_V is None or self._known_V is None:  # not before: a request that waits holds nothing
            with torch.inference_mode(False):  # they are counted on between two steps
                self._count_V = torch.zeros(len(logits_V), device=logits_V.device)
                self._known_V = torch.zeros_like(self._count_V, dtype=torch.bool)
                self._known_V[torch.as_tensor(self._prompt, device=logits_V.device)] = True
        asked = self._sampling
        factor = asked.repetition_penalty
        repeated_V = torch.where(logits_V > 0, logits_V / factor, logits_V * factor)
        logits_V = torch.where(self._known_V, repeated_V, logits_V)
        logits_V = logits_V - asked.frequency_penalty * self._count_V
        return logits_V - asked.presence_penalty * (self._count_V > 0)


class Shaped(Protocol):
    """A request, as far as it shapes its own distribution."""

    @property
    def guide(self) -> Guide | None: ...

    @property
    def bias(self) -> Bias | None: ...

    @property
    def penalties(self) -> Penalties | None: ...

    @property
    def forbidden(self) -> frozenset[int]: ...


def make_penalties(sampling: Sampling, prompt: Sequence[int]) -> Penalties | None:
    """None where nothing is penalised."""
    return Penalties(sampling, prompt) if sampling.penalised else None


def make_bias(pairs: Sequence[tuple[int, float]], vocabulary: int, device: Device) -> Bias | None:
    """Raises: RequestError for an id that the model does not have and for a number beyond 100."""
    check_bias(pairs, vocab_size=vocabulary)
    if not pairs:
        return None
    ids, values = zip(*pairs, strict=True)
    return Bias(
        ids=torch.tensor(ids, device=device), values=torch.tensor(values, dtype=torch.float32, device=device)
    )


def shape(logits_RV: Tensor, rows: Sequence[Shaped]) -> tuple[Tensor, dict[int, RequestError]]:
    """The logits to sample from, and the rows whose constraint cannot be followed any further."""
    shaped = [number for number, one in enumerate(rows) if _is_shaped(one)]
    failed: dict[int, RequestError] = {}
    if not shaped:
        return logits_RV, failed
    vocabulary, device = logits_RV.shape[1], logits_RV.device
    where_M = torch.tensor(shaped, device=device)
    scores_MV = logits_RV[where_M].float()
    masked: list[int] = []
    masks: list[Bits] = []
    for at, number in enumerate(shaped):
        one = rows[number]
        if one.bias is not None:
            scores_MV[at].index_add_(0, one.bias.ids, one.bias.values)
        if one.penalties is not None:
            scores_MV[at] = one.penalties.apply(scores_MV[at])
        if one.forbidden:
            scores_MV[at, torch.tensor(sorted(one.forbidden), device=device)] = -torch.inf
        if one.guide is None:
            continue
        try:
            masks.append(one.guide.allowed(vocabulary))
            masked.append(at)
        except RequestError as error:
            failed[number] = error
    if masked:
        bits = torch.from_numpy(np.stack(masks)).to(device)
        shift_8 = torch.arange(8, dtype=torch.uint8, device=device)
        scores_MV[masked] = scores_MV[masked].masked_fill(~unpack(bits, shift_8, vocabulary), -torch.inf)
    return logits_RV.float().index_copy(0, where_M, scores_MV), failed


def _is_shaped(one: Shaped) -> bool:
    return bool(one.guide or one.bias or one.penalties or one.forbidden)
