"""Logits of the rows whose distribution is shaped from outside: biased, and masked by a constraint.

R rows, M of them shaped, V vocabulary. The other rows' logits are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from art.constraints.guide import Bits, Guide, unpack
from art.engine.limits import check_bias
from art.errors import RequestError


@dataclass(frozen=True, slots=True, eq=False)
class Bias:
    """What is added to some ids' logits."""

    ids: Tensor
    values: Tensor


class Shaped(Protocol):
    """A request, as far as it shapes its own distribution."""

    @property
    def guide(self) -> Guide | None: ...

    @property
    def bias(self) -> Bias | None: ...


def make_bias(pairs: Sequence[tuple[int, float]], vocabulary: int, device: torch.device) -> Bias | None:
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
    shaped = [number for number, one in enumerate(rows) if one.guide is not None or one.bias is not None]
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
