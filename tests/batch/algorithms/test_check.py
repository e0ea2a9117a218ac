"""Combinations that make no sense are refused with the reason; those that people use are not."""

from __future__ import annotations

from typing import Any

import pytest

from art.batch.algorithms import check_algorithm
from art.errors import ConfigurationError
from art.wire.algorithm import Algorithm

TWO = {"minibatches": 2}
TRUNCATE = {"kind": "token_truncate", "high": 2.0}
MASK = {"kind": "token_mask", "low": 0.5, "high": 2.0}
BASE = {"kind": "base"}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"loss": {"name": "grop"}}, r"Unknown loss 'grop'. Known: cispo, .*vespo"),
    (
        {"loss": {"name": "ppo", "params": {"epsilo": 1}}},
        "no parameter 'epsilo'. Known: epsilon, epsilon_high",
    ),
    ({"loss": {"name": "reinforce", "params": {"epsilon": 1}}}, "Known: none at all"),
    ({"advantage": {"kind": "gae"}}, "come from a critic"),
    ({"critic": {}}, "only asked by advantages 'gae'"),
    ({"advantage": {"kind": "turn_gae"}}, r"'turn_gae' come from a critic: add .*'adapter'"),
    ({"advantage": {"kind": "turn_rloo", "lam": 0.5}}, "lam 0.5 acts on advantages 'gae' and 'turn_gae'"),
    ({"advantage": {"kind": "group", "whiten": False}}, "whiten=False acts on"),
    (
        {"advantage": {"kind": "turn_gae"}, "critic": {}, "kl": {"coefficient": 0.1, "place": "reward"}},
        "not taken off the rewards of turns",
    ),
    (
        {"advantage": {"kind": "turn_gae"}, "critic": {}, "mismatch": [MASK], "masked": "drop"},
        "compare no rollouts",
    ),
    ({"advantage": {"kind": "distillation"}}, "need a teacher"),
    ({"teacher": BASE}, "only asked by advantages 'distillation'"),
    ({"advantage": {"kind": "group", "gamma": 0.9}}, "gamma 0.9 acts on"),
    ({"advantage": {"kind": "turn_tree", "gamma": 0.9}}, "gamma 0.9 acts on"),
    ({"advantage": {"kind": "mt_grpo", "gamma": 0.9}}, "gamma 0.9 acts on.*or credit 'rest'"),
    ({"advantage": {"kind": "gigpo", "gamma": 0.9, "credit": "turn"}}, "gamma 0.9 acts on.*give gamma 1"),
    ({"advantage": {"kind": "group", "credit": "turn"}}, "credit 'turn' would not act"),
    ({"advantage": {"kind": "turn_tree", "credit": "rest"}}, "credit 'rest' would not act"),
    ({"advantage": {"kind": "reinforce++", "lam": 0.9}}, "lam 0.9 acts on"),
    (
        {"advantage": {"kind": "distillation"}, "teacher": BASE, "overlong": {"limit": 9, "band": 3}},
        "take none",
    ),
    (
        {"advantage": {"kind": "gae"}, "critic": {}, "loss": {"name": "ppo"}, "ratio": "sequence"},
        "average them over the sequence",
    ),
    (
        {
            "advantage": {"kind": "distillation"},
            "teacher": BASE,
            "loss": {"name": "gmpo"},
            "ratio": "geometric",
        },
        "average them over the sequence",
    ),
    ({"advantage": {"kind": "gdpo"}}, "name metrics of the trajectories with their weights"),
    ({"reward_parts": {"right": 1.0}}, "act on advantages 'gdpo', not on 'group'"),
    (
        {
            "advantage": {"kind": "gdpo"},
            "reward_parts": {"right": 1.0},
            "overlong": {"limit": 9, "band": 3},
        },
        "make the length a part",
    ),
    (
        {
            "advantage": {"kind": "gdpo"},
            "reward_parts": {"right": 1.0},
            "kl": {"coefficient": 0.1, "place": "reward"},
        },
        "make the length a part",
    ),
    ({"loss": {"name": "cross_entropy"}}, "has advantages 'none'"),
    ({"advantage": {"kind": "none"}}, "each rollout would be as good as any"),
    (
        {
            "loss": {"name": "cross_entropy"},
            "advantage": {"kind": "none"},
            "kl": {"coefficient": 0.1, "place": "reward"},
        },
        "these are shown",
    ),
    (
        {
            "loss": {"name": "cross_entropy"},
            "advantage": {"kind": "none"},
            "mismatch": [{"kind": "negative_mask", "high": 1}],
        },
        "these are shown",
    ),
    ({"kl": {"coefficient": 0.1, "place": "term"}}, "kl.place 'term' with loss 'cispo'"),
    (
        {"loss": {"name": "cross_entropy"}, "advantage": {"kind": "none"}, "entropy": {"coefficient": 0.1}},
        "both keep a policy exploring",
    ),
    (
        {"loss": {"name": "cross_entropy"}, "advantage": {"kind": "none"}, "top_entropy": 0.2},
        "both keep a policy exploring",
    ),
    ({"ratio": "sequence", "top_entropy": 0.2}, "top_entropy 0.2 selects single tokens"),
    ({"loss": {"name": "vespo"}, "top_entropy": 0.2}, "belongs to a whole sequence"),
    ({"loss": {"name": "gmpo"}}, "takes the geometric mean of token ratios"),
    ({"loss": {"name": "ppo"}, "ratio": "geometric"}, "does not clip token by token"),
    ({"loss": {"name": "dppo"}, "ratio": "sequence"}, "probability of one token"),
    ({"loss": {"name": "vespo"}, "ratio": "sequence"}, "product over the sequence itself"),
    ({"loss": {"name": "reinforce"}, "ratio": "sequence"}, "it has no ratio"),
    ({"loss": {"name": "reinforce"}, "ratio_to": "trainer"}, "would not act"),
    ({"ratio_to": "trainer"}, "the ratio is always 1"),
    ({"loss": {"name": "reinforce"}, "updates": TWO}, "another policy's"),
    (
        {"loss": {"name": "reinforce"}, "updates": TWO, "mismatch": [TRUNCATE], "ratio_to": "trainer"},
        "another policy's",
    ),
    ({"kl": {"coefficient": 0.1, "place": "reward", "importance": True}}, "kl.importance acts on"),
    ({"kl": {"coefficient": 0.1, "estimator": "k1"}}, "pulls nowhere"),
    ({"kl": {"coefficient": 0.1, "source": "sampler"}}, "outside of the loss"),
    (
        {"kl": {"coefficient": 0.1, "place": "advantage", "source": "sampler", "reference": "sampler"}},
        "another reference than the sampler",
    ),
    ({"kl": {"coefficient": 0.1, "estimator": "k2", "importance": True}}, "no divergence"),
    (
        {"advantage": {"kind": "distillation"}, "teacher": BASE, "kl": {"coefficient": 0.1}},
        "only one other policy",
    ),
    ({"mismatch": [TRUNCATE]}, "the weight would do it again"),
    ({"mismatch": [{**MASK, "low": 2.0}]}, "nothing passes"),
    ({"mismatch": [{"kind": "negative_mask", "low": 0.1, "high": 1}]}, "would not act"),
    ({"mismatch": [MASK], "ratio": "sequence"}, "corrects single tokens"),
    ({"mismatch": [MASK], "loss": {"name": "vespo"}}, "corrects single tokens"),
    (
        {"mismatch": [TRUNCATE, {"kind": "sequence_truncate", "high": 2.0}], "ratio_to": "trainer"},
        "all weigh by the same ratio",
    ),
    (
        {"mismatch": [MASK, {"kind": "sequence_mask", "high": 2.0}], "ratio_to": "trainer"},
        "all weigh by the same ratio",
    ),
]

ALLOWED: list[dict[str, Any]] = [
    {},
    {"entropy": {"coefficient": 0.1}, "top_entropy": 0.2},
    {"entropy": {"target": 0.2, "step": 0.005}, "mismatch": [MASK]},
    {"entropy": {"coefficient": 0.1}, "ratio": "sequence"},
    {"kl": {"coefficient": 0.1, "reference": "average", "mixup": 0.6, "every": 8}},
    {"kl": {"coefficient": 0.1, "reference": "step", "every": 8}},
    {"ratio": "sequence"},
    {"ratio": "average", "loss": {"name": "ppo"}},
    {"ratio_to": "trainer", "mismatch": [TRUNCATE]},
    {
        "ratio_to": "trainer",
        "mismatch": [TRUNCATE, MASK, {"kind": "geometric_mask", "low": 0.9, "high": 1.1}],
    },
    {"ratio_to": "trainer", "updates": TWO},
    {"mismatch": [MASK, {"kind": "sequence_mask", "high": 3.0}]},
    {"loss": {"name": "reinforce"}, "mismatch": [TRUNCATE]},
    {"loss": {"name": "reinforce"}, "mismatch": [TRUNCATE], "updates": TWO},
    {"loss": {"name": "reinforce"}, "mismatch": [TRUNCATE], "ratio_to": "trainer"},
    {"loss": {"name": "cross_entropy"}, "advantage": {"kind": "none"}, "updates": {"epochs": 3}},
    {"advantage": {"kind": "gae", "gamma": 0.99, "lam": 0.95}, "critic": {}},
    {"advantage": {"kind": "mt_grpo", "gamma": 0.9, "credit": "rest"}},
    {"advantage": {"kind": "progress", "gamma": 0.9, "credit": "turn"}},
    {"advantage": {"kind": "turn_gae", "gamma": 0.9, "lam": 0.5, "whiten": False}, "critic": {}},
    {"advantage": {"kind": "gae"}, "critic": {"kind": "adapter", "rank": 4, "warmup_steps": 3}},
    {"kl": {"coefficient": 0.1, "estimator": "k1", "importance": True}},
    {"kl": {"coefficient": 0.1, "estimator": "k1", "place": "shaped_advantage"}},
    {"kl": {"coefficient": 0.002, "estimator": "k2", "reference": "sampler"}, "loss": {"name": "dppo"}},
    {
        "advantage": {"kind": "distillation"},
        "teacher": {"kind": "server", "url": "http://x", "model": "m"},
        "kl": {"coefficient": 0.1},
    },
]


@pytest.mark.parametrize(("parts", "reason"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused_with_the_reason(parts: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        check_algorithm(Algorithm.model_validate(parts))


@pytest.mark.parametrize("parts", ALLOWED, ids=lambda value: str(value)[:60])
def test_allowed(parts: dict[str, Any]) -> None:
    check_algorithm(Algorithm.model_validate(parts))


def test_all_reasons_are_given_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"Algorithm 'mine': .*critic.*pulls nowhere"):
        check_algorithm(
            Algorithm.model_validate(
                {
                    "name": "mine",
                    "advantage": {"kind": "gae"},
                    "kl": {"coefficient": 0.1, "estimator": "k1"},
                }
            )
        )
