"""What can be said of a token term without computing it. The functions are in `art.training.losses`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from art.wire.algorithm import RatioLevel

ANY: tuple[RatioLevel, ...] = ("token", "sequence", "average", "geometric_average")


@dataclass(frozen=True, kw_only=True, slots=True)
class LossFacts:
    """What fits a token term."""

    formula: str
    """What is minimised. r: ratio, A: advantage, p: probability."""
    params: tuple[str, ...] = ()
    levels: tuple[RatioLevel, ...] = ANY
    why: str = ""
    """Why the other levels do not fit."""
    has_ratio: bool = True


_CLIP = LossFacts(
    formula="-min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)",
    params=("epsilon", "epsilon_high", "dual_clip", "delta"),
)

LOSSES: Mapping[str, LossFacts] = MappingProxyType(
    {
        "cispo": LossFacts(
            formula="-sg(clip(r, 1 - epsilon, 1 + epsilon_high)) A log p", params=("epsilon", "epsilon_high")
        ),
        "cross_entropy": LossFacts(
            formula="-log p", levels=("token",), why="it has no ratio", has_ratio=False
        ),
        "dppo": LossFacts(
            formula="-r A, 0 where A > 0 and p - p' > high or A <= 0 and p' - p > low",
            params=("low", "high"),
            levels=("token",),
            why="it bounds the probability of one token",
        ),
        "gmpo": LossFacts(
            formula="-A exp(mean(clip(log r, -epsilon, epsilon_high)))",
            params=("epsilon", "epsilon_high"),
            levels=("geometric",),
            why="it takes the geometric mean of token ratios that it clips itself",
        ),
        "grpo": _CLIP,
        "importance_sampling": LossFacts(formula="-r A"),
        "ppo": _CLIP,
        "reinforce": LossFacts(formula="-A log p", levels=("token",), why="it has no ratio", has_ratio=False),
        "sapo": LossFacts(formula="-A (4 / tau) sigmoid(tau (r - 1))", params=("tau", "tau_negative")),
        "vespo": LossFacts(
            formula="-sg(w^k exp(lam (1 - w))) A log p, w = product of r",
            params=("k", "lam", "k_negative", "lam_negative"),
            levels=("token",),
            why="it takes the product over the sequence itself",
        ),
    }
)
