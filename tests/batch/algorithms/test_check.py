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
    ({"advantage": {"kind": "distillation"}}, "need a teacher"),
    ({"teacher": BASE}, "only asked by advantages 'distillation'"),
    ({"advantage": {"kind": "group", "gamma": 0.9}}, "gamma 0.9 acts on"),
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
