"""Shapes the logits of a step and draws one token per row, all rows in a few tensor operations.

Logits are biased, penalised for what was there before, and masked by a constraint or by `min_tokens`, in this
order, which is vLLM's; rows that ask for none of it are not touched. The distribution then is logits /
temperature, then top_k, then top_p, then min_p (the order of `transformers`), renormalised. The logprob
reported is that of exactly this distribution.

Randomness is a function, not a stream: the uniform number of a row's n-th token is a hash of (seed, n), so a
seeded request draws the same tokens whatever runs beside it. The token is the first whose cumulative
probability exceeds it.

R rows, M of them shaped, V vocabulary.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch import device as Device

from art.engine.constraints import Bits, Guide, unpack_mask
from art.engine.limits import check_bias
from art.engine.protocol import Sampling, TopLogprobs
from art.errors import RequestError
from art.wire.samples import CANDIDATES_NOT_RECORDED, MAX_CANDIDATES, candidates_record


@dataclass(frozen=True, slots=True, eq=False)
class LogitBias:
    """The biases of some ids' logits."""

    ids: Tensor
    values: Tensor


class Penalties:
    """The penalties of earlier ids, with the count of each. (Keskar et al., CTRL, arXiv 1909.05858:
    repetition. OpenAI's API: frequency and presence.)
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


class ShapedRow(Protocol):
    """A request, as far as it shapes its own distribution."""

    @property
    def guide(self) -> Guide | None: ...

    @property
    def bias(self) -> LogitBias | None: ...

    @property
    def penalties(self) -> Penalties | None: ...

    @property
    def forbidden(self) -> frozenset[int]: ...


def make_penalties(sampling: Sampling, prompt: Sequence[int]) -> Penalties | None:
    """Returns the penalties; None if nothing is penalised."""
    return Penalties(sampling, prompt) if sampling.penalised else None


def make_bias(pairs: Sequence[tuple[int, float]], vocabulary: int, device: Device) -> LogitBias | None:
    """Raises: RequestError for an id that the model does not have and for a number beyond 100."""
    check_bias(pairs, vocab_size=vocabulary)
    if not pairs:
        return None
    ids, values = zip(*pairs, strict=True)
    return LogitBias(
        ids=torch.tensor(ids, device=device), values=torch.tensor(values, dtype=torch.float32, device=device)
    )


def shape_logits(logits_RV: Tensor, rows: Sequence[ShapedRow]) -> tuple[Tensor, dict[int, RequestError]]:
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
        scores_MV[masked] = scores_MV[masked].masked_fill(~unpack_mask(bits, shift_8, vocabulary), -torch.inf)
    return logits_RV.float().index_copy(0, where_M, scores_MV), failed


def _is_shaped(one: ShapedRow) -> bool:
    return bool(one.guide or one.bias or one.penalties or one.forbidden)


MASK_64 = (1 << 64) - 1
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class SamplingTable:
    """Sampling parameters of each cache row, as arrays, so that a step reads them all at once."""

    def __init__(self, rows: int) -> None:
        self.temperature = np.ones(rows, np.float32)
        self.top_p = np.ones(rows, np.float32)
        self.top_k = np.zeros(rows, np.int64)
        self.min_p = np.zeros(rows, np.float32)
        self.seed = np.zeros(rows, np.uint64)
        self.top_logprobs = np.zeros(rows, np.int64)

    def set(self, row: int, sampling: Sampling, seed: int) -> None:
        """A greedy row is neither tempered nor truncated: its logprob is that of the model."""
        greedy = np.float32(sampling.temperature) == 0
        self.temperature[row] = sampling.temperature
        self.top_p[row] = 1.0 if greedy else sampling.top_p
        self.top_k[row] = 0 if greedy else sampling.top_k
        self.min_p[row] = 0.0 if greedy else sampling.min_p
        self.seed[row] = seed
        self.top_logprobs[row] = sampling.top_logprobs


def request_seed(sampling: Sampling) -> int:
    """The request's seed as 64 bits, or a fresh one."""
    return secrets.randbits(64) if sampling.seed is None else sampling.seed & MASK_64


def uniforms(seed_R: np.ndarray, count_R: np.ndarray) -> np.ndarray:
    """One number in [0, 1) per row from its seed and the number of tokens before it (splitmix64, twice).

    Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
    """
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(seed_R + GOLDEN) + (count_R.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    return (mixed >> np.uint64(12)).astype(np.float64) / float(1 << 52)


def _mix(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token of each row."""

    tokens: list[int]
    logprobs: list[float]
    tops: dict[int, TopLogprobs]
    """The most probable ids of the rows that asked for them, by their place among the rows."""
    candidates: dict[int, bytes]
    """The candidates of the rows that truncate, by their place: records of `art.wire.samples`."""


def sample(logits_RV: Tensor, table: SamplingTable, rows_R: np.ndarray, count_R: np.ndarray) -> Drawn:
    """Draw for each row. `count_R` is the number of tokens that the row has sampled before."""
    device = logits_RV.device
    temperature_R = table.temperature[rows_R]
    greedy_R = temperature_R == 0
    scores_RV = logits_RV.float()
    if (temperature_R != 1).any():
        divisor_R = np.where(greedy_R, np.float32(1), temperature_R)
        # From the largest down, so that the smallest temperature gives 0 and -inf, never inf.
        scores_RV = scores_RV - scores_RV.amax(-1, keepdim=True)
        scores_RV = scores_RV / torch.from_numpy(divisor_R).to(device)[:, None]
    scores_RV = _truncate(scores_RV, table, rows_R)
    probability_RV = torch.softmax(scores_RV, dim=-1)
    drawn_R = _draw(probability_RV, uniforms(table.seed[rows_R], count_R))
    if greedy_R.any():
        drawn_R = torch.where(torch.from_numpy(greedy_R).to(device), probability_RV.argmax(-1), drawn_R)
    # The log of a float32 softmax is as exact as log_softmax for any probability that is ever drawn.
    chosen_R = probability_RV.gather(1, drawn_R[:, None])[:, 0].log()
    return Drawn(
        drawn_R.tolist(),
        chosen_R.tolist(),
        _tops(probability_RV, table.top_logprobs[rows_R]),
        _candidates(scores_RV, table, rows_R),
    )


def _candidates(scores_RV: Tensor, table: SamplingTable, rows_R: np.ndarray) -> dict[int, bytes]:
    """The ids that each truncating row could draw."""
    truncates_R = (table.top_k[rows_R] > 0) | (table.top_p[rows_R] < 1) | (table.min_p[rows_R] > 0)
    truncating = np.flatnonzero(truncates_R)
    if not len(truncating):
        return {}
    possible_MV = scores_RV[torch.from_numpy(truncating).to(scores_RV.device)] > float("-inf")
    count_M = possible_MV.sum(-1)
    small_M = count_M <= MAX_CANDIDATES
    ids = iter(possible_MV[small_M].nonzero()[:, 1].tolist())  # row after row, rising
    return {
        row: candidates_record(list(islice(ids, count))) if small else CANDIDATES_NOT_RECORDED
        for row, count, small in zip(truncating.tolist(), count_M.tolist(), small_M.tolist(), strict=True)
    }


def _tops(probability_RV: Tensor, wanted_R: np.ndarray) -> dict[int, TopLogprobs]:
    """The most probable tokens of the rows that want any; those that cannot be drawn are left out."""
    asking = np.flatnonzero(wanted_R)
    if not len(asking):
        return {}
    most = min(int(wanted_R.max()), probability_RV.shape[1])
    best = probability_RV[torch.from_numpy(asking).to(probability_RV.device)].topk(most, dim=-1)
    found = zip(asking.tolist(), best.indices.tolist(), best.values.log().tolist(), strict=True)
    return {
        row: [(token, value) for token, value in zip(ids, values, strict=True) if value > -math.inf][
            : int(wanted_R[row])
        ]
        for row, ids, values in found
    }


def _draw(probability_RV: Tensor, uniform_R: np.ndarray) -> Tensor:
    """Inverse of the cumulative distribution; float64, so that a large vocabulary loses no probability."""
    cumulative_RV = probability_RV.cumsum(-1, dtype=torch.float64)
    target_R = torch.from_numpy(uniform_R).to(probability_RV.device)[:, None] * cumulative_RV[:, -1:]
    drawn_R = torch.searchsorted(cumulative_RV, target_R, right=True)[:, 0]
    return drawn_R.clamp_(max=probability_RV.shape[1] - 1)


def _truncate(scores_RV: Tensor, table: SamplingTable, rows_R: np.ndarray) -> Tensor:
    top_k_R, top_p_R, min_p_R = table.top_k[rows_R], table.top_p[rows_R], table.min_p[rows_R]
    device = scores_RV.device
    if (top_k_R > 0).any():
        scores_RV = _keep_top_k(scores_RV, torch.from_numpy(top_k_R).to(device))
    if (top_p_R < 1).any():
        scores_RV = _keep_top_p(scores_RV, torch.from_numpy(top_p_R).to(device))
    if (min_p_R > 0).any():
        floor_R = scores_RV.amax(-1) + torch.from_numpy(min_p_R).to(device).log()
        scores_RV = scores_RV.masked_fill(scores_RV < floor_R[:, None], float("-inf"))
    return scores_RV


def _keep_top_k(scores_RV: Tensor, top_k_R: Tensor) -> Tensor:
    """Ties with the k-th score are kept, so the result does not depend on the order of the vocabulary."""
    vocab = scores_RV.shape[1]
    limit_R = torch.where(top_k_R > 0, top_k_R, vocab).clamp(max=vocab)
    best_RK = scores_RV.topk(int(limit_R.max()), dim=-1).values
    kth_R = best_RK.gather(1, limit_R[:, None] - 1)
    return scores_RV.masked_fill(scores_RV < kth_R, float("-inf"))


def _keep_top_p(scores_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """The smallest set of most probable tokens whose sum reaches p: a token stays while the sum before it is
    < p."""
    sorted_RV, order_RV = scores_RV.sort(dim=-1, descending=True, stable=True)
    probability_RV = sorted_RV.softmax(-1)
    before_RV = probability_RV.cumsum(-1) - probability_RV
    drop_RV = (before_RV >= top_p_R[:, None]) & (top_p_R[:, None] < 1)
    drop_RV[:, 0] = False
    return scores_RV.masked_fill(torch.zeros_like(drop_RV).scatter_(1, order_RV, drop_RV), float("-inf"))
