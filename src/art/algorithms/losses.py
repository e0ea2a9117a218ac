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
    levels: tuple[RatioLevel, ...] = ANY
    why: str = ""
    """Why the other levels do not fit."""
    has_ratio: bool = True


def _facts(formula: str, *levels: RatioLevel, why: str, has_ratio: bool = True) -> LossFacts:
    return LossFacts(formula=formula, levels=levels, why=why, has_ratio=has_ratio)


_CLIP = LossFacts(formula="-min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)")

LOSSES: Mapping[str, LossFacts] = MappingProxyType(
    {
        "cispo": LossFacts(formula="-sg(clip(r, 1 - epsilon, 1 + epsilon_high)) A log p"),
        "cross_entropy": _facts("-log p", "token", why="it has no ratio", has_ratio=False),
        "dppo": _facts(
            "-r A, 0 where A > 0 and p - p' > high or A < 0 and p' - p > low",
            "token",
            why="it bounds the probability of one token",
        ),
        "gmpo": _facts(
            "-A exp(mean(clip(log r, -epsilon, epsilon_high)))",
            "geometric",
            why="it takes the geometric mean of token ratios that it clips itself",
        ),
        "grpo": _CLIP,
        "importance_sampling": LossFacts(formula="-r A"),
        "ppo": _CLIP,
        "reinforce": _facts("-A log p", "token", why="it has no ratio", has_ratio=False),
        "sapo": LossFacts(formula="-A (4 / tau) sigmoid(tau (r - 1))"),
        "vespo": _facts(
            "-sg(w^k exp(lam (1 - w))) A log p, w = product of r",
            "token",
            why="it takes the product over the sequence itself",
        ),
    }
)
