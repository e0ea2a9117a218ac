"""Draw one token per row, all rows in a few tensor operations.

R rows, V vocabulary. The distribution: logits / temperature, then top_k, then top_p, then min_p (the order of
`transformers`), renormalised. The logprob reported is that of exactly this distribution.

Randomness is a function, not a stream: the uniform number of a row's n-th token is a hash of (seed, n), so a
seeded request draws the same tokens whatever runs beside it. The token is the first whose cumulative
probability exceeds it.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from art.engine.protocol import Sampling, TopLogprobs
from art.wire.candidates import CANDIDATES_NOT_RECORDED, MAX_CANDIDATES, candidates_record

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
    """Of the rows that asked for them, by their place among the rows."""
    candidates: dict[int, bytes]
    """Of the rows that truncate: records of `art.wire.candidates`."""


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
