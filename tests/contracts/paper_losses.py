"""The losses once more, from the papers: plain Python, one token after the other, nothing of the library.

Each takes one sequence as lists (logprobs, old logprobs, advantage A of the sequence) and gives the term of
each of its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

Terms = Callable[[list[float], list[float], float], list[float]]


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def sequence_ratio(lp: list[float], old: list[float]) -> float:
    """GSPO, equation 7."""
    return math.exp(sum(p - q for p, q in zip(lp, old, strict=True)) / len(lp))


def surrogate(ratio: float, advantage: float, low: float, high: float) -> float:
    """PPO, equation 7."""
    return -min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)


def ppo(lp: list[float], old: list[float], advantage: float) -> list[float]:
    return [surrogate(math.exp(p - q), advantage, 0.2, 0.2) for p, q in zip(lp, old, strict=True)]


def dapo(lp: list[float], old: list[float], advantage: float) -> list[float]:
    return [surrogate(math.exp(p - q), advantage, 0.2, 0.28) for p, q in zip(lp, old, strict=True)]


def gspo(lp: list[float], old: list[float], advantage: float) -> list[float]:
    return [surrogate(sequence_ratio(lp, old), advantage, 3e-4, 4e-4)] * len(lp)


def dual_clip(lp: list[float], old: list[float], advantage: float) -> list[float]:
    """Ye et al., equation 3: max(min(...), c A) where A < 0."""
    plain = ppo(lp, old, advantage)
    return [min(term, -3.0 * advantage) for term in plain] if advantage < 0 else plain


def two_sided(lp: list[float], old: list[float], advantage: float) -> list[float]:
    """INTELLECT-2: -min(min(r, delta) A, clip(r) A)."""
    ratios = [math.exp(p - q) for p, q in zip(lp, old, strict=True)]
    return [-min(min(r, 4.0) * advantage, clip(r, 0.8, 1.2) * advantage) for r in ratios]


def cispo(lp: list[float], old: list[float], advantage: float) -> list[float]:
    return [-clip(math.exp(p - q), 0.0, 5.0) * advantage * p for p, q in zip(lp, old, strict=True)]


def gmpo(lp: list[float], old: list[float], advantage: float) -> list[float]:
    """Equation 4, in the log domain: sign(A) min(sign(A) log r, sign(A) clip(log r))."""
    sign = math.copysign(1.0, advantage)
    total = 0.0
    for p, q in zip(lp, old, strict=True):
        total += sign * min(sign * (p - q), sign * clip(p - q, -0.4, 0.4))
    return [-advantage * math.exp(total / len(lp))] * len(lp)


def sapo(lp: list[float], old: list[float], advantage: float) -> list[float]:
    tau = 1.0 if advantage > 0 else 1.05
    gates = [4 / tau / (1 + math.exp(-tau * (math.exp(p - q) - 1))) for p, q in zip(lp, old, strict=True)]
    return [-gate * advantage for gate in gates]


def dppo(lp: list[float], old: list[float], advantage: float) -> list[float]:
    terms = []
    for p, q in zip(lp, old, strict=True):
        moved = math.exp(p) - math.exp(q)
        keeps = moved <= 0.2 if advantage > 0 else moved >= -0.2
        terms.append(-math.exp(p - q) * advantage if keeps else 0.0)
    return terms


def dro(lp: list[float], old: list[float], advantage: float) -> list[float]:
    """Richemond et al. by token: the objective is A log p - (beta / 2) (log(p / q))^2."""
    return [-(advantage * p - 0.05 / 2 * (p - q) ** 2) for p, q in zip(lp, old, strict=True)]


def gspo_token(lp: list[float], old: list[float], advantage: float) -> list[float]:
    """GSPO, equation 13: the value is that of equation 5."""
    return [surrogate(sequence_ratio(lp, old), advantage, 0.2, 0.2)] * len(lp)


def vespo(lp: list[float], old: list[float], advantage: float) -> list[float]:
    k, lam = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
    w = math.prod(math.exp(p - q) for p, q in zip(lp, old, strict=True))
    phi = math.exp(lam) * w**k * math.exp(-lam * w)
    return [-phi * advantage * p for p in lp]


def importance_sampling(lp: list[float], old: list[float], advantage: float) -> list[float]:
    return [-math.exp(p - q) * advantage for p, q in zip(lp, old, strict=True)]


def reinforce(lp: list[float], old: list[float], advantage: float) -> list[float]:
    return [-advantage * p for p in lp]


def cross_entropy(lp: list[float], old: list[float], advantage: float) -> list[float]:
    return [-p for p in lp]


BY_LOSS: Mapping[str, Terms] = MappingProxyType(
    {
        "cispo": cispo,
        "cross_entropy": cross_entropy,
        "dppo": dppo,
        "dro": dro,
        "gmpo": gmpo,
        "grpo": ppo,
        "gspo_token": gspo_token,
        "importance_sampling": importance_sampling,
        "ppo": ppo,
        "reinforce": reinforce,
        "sapo": sapo,
        "vespo": vespo,
    }
)
BY_ALGORITHM: Mapping[str, Terms] = MappingProxyType(
    {
        "art": cispo,
        "cispo": cispo,
        "dapo": dapo,
        "distillation": importance_sampling,
        "dppo": dppo,
        "dr_grpo": ppo,
        "dual_clip": dual_clip,
        "gdpo": ppo,
        "gigpo": ppo,
        "gmpo": gmpo,
        "grpo": ppo,
        "gspo": gspo,
        "importance_sampling": importance_sampling,
        "lite_ppo": ppo,
        "maxrl": ppo,
        "mt_grpo": ppo,
        "ppo_critic": ppo,
        "ppo_value": ppo,
        "progress": importance_sampling,
        "reinforce": reinforce,
        "reinforce++": ppo,
        "reinforce++_baseline": ppo,
        "rloo": ppo,
        "sapo": sapo,
        "sft": cross_entropy,
        "state_rloo": importance_sampling,
        "turn_gae": ppo,
        "turn_return": importance_sampling,
        "turn_rloo": importance_sampling,
        "turn_tree": ppo,
        "two_sided": two_sided,
        "vespo": vespo,
    }
)
