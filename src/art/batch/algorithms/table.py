"""Every named algorithm: one row, with all its values spelled out.

A row says what makes the algorithm itself. Left to the caller in all of them: a KL term (the field has
switched it off by default), the correction for engine against trainer, and the number of updates except where
the paper fixes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from art.errors import ConfigurationError, did_you_mean
from art.wire.algorithm import (
    AdvantageSpec,
    AggregationSpec,
    Algorithm,
    CriticSpec,
    LossSpec,
    OverlongSpec,
    UpdatesSpec,
)

GROUP = AdvantageSpec(kind="group", std="sample")
"""The advantages within a group as TRL, verl, SkyRL and slime compute them."""
SEQUENCE_MEAN = AggregationSpec(kind="sequence_mean")
TOKEN_MEAN = AggregationSpec(kind="token_mean")
DEFAULT = "art"
"""What trains where no algorithm is named: the objective of the older releases, so that their programs learn
in the same direction."""
CLIP = LossSpec(name="ppo", params={"epsilon": 0.2, "epsilon_high": 0.2})
_OF_TURNS: Mapping[str, Any] = MappingProxyType(
    {"loss": LossSpec(name="importance_sampling"), "zero_advantage": "count", "aggregation": TOKEN_MEAN}
)
_OF_VALUES: Mapping[str, Any] = MappingProxyType(
    {
        "loss": CLIP,
        "ratio_to": "trainer",
        "zero_advantage": "count",
        "updates": UpdatesSpec(minibatches=4),
        "critic": CriticSpec(kind="adapter"),
        "aggregation": TOKEN_MEAN,
    }
)
CISPO = LossSpec(name="cispo", params={"epsilon": 1.0, "epsilon_high": 4.0})


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A named algorithm."""

    algorithm: Algorithm
    meaning: str
    """One line. It ends with the bias: `bench.learning.bias` has the figures."""
    papers: tuple[str, ...]
    """arXiv numbers, or a title."""
    needs: tuple[str, ...] = ()
    """Parts that only the caller can give."""


def _row(name: str, meaning: str, *papers: str, needs: tuple[str, ...] = (), **parts: Any) -> tuple[str, Row]:
    return name, Row(algorithm=Algorithm(name=name, **parts), meaning=meaning, papers=papers, needs=needs)


TABLE: Mapping[str, Row] = MappingProxyType(
    dict(
        (
            _row(
                "art",
                "CISPO, each rollout counting the same whatever its length. The default. Biased.",
                "2506.13585",
                loss=CISPO,
                aggregation=SEQUENCE_MEAN,
            ),
            _row(
                "cispo",
                "Clips the weight of a token, never its gradient; the mean over tokens. Biased.",
                "2506.13585",
                "2510.13786",
                loss=CISPO,
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "grpo",
                "Rewards normalised in their group, clipped ratio. Biased.",
                "2402.03300",
                advantage=GROUP,
                loss=CLIP,
                aggregation=SEQUENCE_MEAN,
                zero_advantage="count",
            ),
            _row(
                "dr_grpo",
                "GRPO without its two biases: no division by deviation or by length. Unbiased.",
                "2503.20783",
                advantage=AdvantageSpec(kind="centered"),
                loss=CLIP,
                aggregation=AggregationSpec(kind="constant", length=3000),
                zero_advantage="count",
            ),
            _row(
                "dapo",
                "GRPO with a higher upper clip, the mean over tokens, a soft punishment of length. Biased.",
                "2503.14476",
                advantage=GROUP,
                loss=LossSpec(name="ppo", params={"epsilon": 0.2, "epsilon_high": 0.28}),
                overlong=OverlongSpec(limit=20480, band=4096),
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "gspo",
                "One ratio for a whole sequence, clipped tightly. Biased.",
                "2507.18071",
                advantage=GROUP,
                loss=LossSpec(name="ppo", params={"epsilon": 3e-4, "epsilon_high": 4e-4}),
                ratio="sequence",
                ratio_to="trainer",
                aggregation=SEQUENCE_MEAN,
                zero_advantage="count",
                updates=UpdatesSpec(minibatches=4),
            ),
            _row(
                "gmpo",
                "Geometric mean of the sequence's token ratios, clipped one by one and widely. Biased.",
                "2507.20673",
                advantage=GROUP,
                loss=LossSpec(name="gmpo", params={"epsilon": 0.4, "epsilon_high": 0.4}),
                ratio="geometric",
                aggregation=SEQUENCE_MEAN,
                zero_advantage="count",
            ),
            _row(
                "sapo",
                "A soft gate in place of the clip. Biased.",
                "2511.20347",
                advantage=GROUP,
                loss=LossSpec(name="sapo", params={"tau": 1.0, "tau_negative": 1.05}),
                aggregation=SEQUENCE_MEAN,
                zero_advantage="count",
            ),
            _row(
                "dppo",
                "Bounds the change of a token's probability, not its ratio. Unbiased; token mean 3.3 % off.",
                "2602.04879",
                advantage=AdvantageSpec(kind="centered"),
                loss=LossSpec(name="dppo", params={"low": 0.2, "high": 0.2}),
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "vespo",
                "A soft weight of the whole sequence's product of ratios. Biased.",
                "2602.10693",
                advantage=GROUP,
                loss=LossSpec(
                    name="vespo", params={"k": 2.0, "lam": 3.0, "k_negative": 3.0, "lam_negative": 2.0}
                ),
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "dual_clip",
                "GRPO whose negative advantages are bounded too. Biased.",
                "1912.09729",
                advantage=GROUP,
                loss=LossSpec(name="ppo", params={"epsilon": 0.2, "epsilon_high": 0.2, "dual_clip": 3.0}),
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "two_sided",
                "The same bound as INTELLECT-2 has it. Biased.",
                "2505.07291",
                advantage=GROUP,
                loss=LossSpec(name="ppo", params={"epsilon": 0.2, "epsilon_high": 0.2, "delta": 4.0}),
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "rloo",
                "Each rollout against the mean of the others. Unbiased; token mean 3.3 % off.",
                "2402.14740",
                advantage=AdvantageSpec(kind="rloo"),
                loss=CLIP,
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "reinforce++",
                "Rewards whitened over the whole batch, no groups needed. Biased.",
                "2501.03262",
                advantage=AdvantageSpec(kind="reinforce++", std="sample"),
                loss=CLIP,
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "reinforce++_baseline",
                "The group's mean as baseline, then whitened over the batch. Biased.",
                "2501.03262",
                advantage=AdvantageSpec(kind="reinforce++_baseline", std="sample"),
                loss=CLIP,
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "maxrl",
                "Divides by the group's mean: towards likelihood of success. Rewards of at least 0. Biased.",
                "2602.02710",
                advantage=AdvantageSpec(kind="maxrl"),
                loss=CLIP,
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "gdpo",
                "Each part of the reward normalised in its group; their sum, over the batch. Biased.",
                "2601.05242",
                advantage=AdvantageSpec(kind="gdpo", std="sample"),
                loss=CLIP,
                aggregation=SEQUENCE_MEAN,
                zero_advantage="count",
                needs=("reward_parts",),
            ),
            _row(
                "lite_ppo",
                "Group mean, deviation of the batch, mean over tokens. Biased.",
                "2508.08221",
                advantage=AdvantageSpec(kind="batch_std", std="sample"),
                loss=CLIP,
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "importance_sampling",
                "The plain policy gradient times the ratio, without a bound. Unbiased; token mean 3.3 % off.",
                "Kahn & Marshall, 1953",
                advantage=AdvantageSpec(kind="centered"),
                loss=LossSpec(name="importance_sampling"),
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "reinforce",
                "The plain policy gradient, on policy only. Unbiased; token mean 3.3 % off.",
                "Williams, 1992",
                advantage=AdvantageSpec(kind="centered"),
                loss=LossSpec(name="reinforce"),
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "ppo_critic",
                "PPO with the value of every token from a linear probe on the policy's features. Biased.",
                "1707.06347",
                "1506.02438",
                advantage=AdvantageSpec(kind="gae", gamma=1.0, lam=1.0),
                loss=CLIP,
                ratio_to="trainer",
                zero_advantage="count",
                updates=UpdatesSpec(minibatches=4),
                critic=CriticSpec(),
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "ppo_value",
                "PPO with the value of every token from a value model, a LoRA of its own. Biased.",
                "1707.06347",
                "1506.02438",
                advantage=AdvantageSpec(kind="gae", gamma=1.0, lam=1.0),
                **_OF_VALUES,
            ),
            _row(
                "turn_gae",
                "PPO of turns: each learns from the values around it. Unbiased; token mean 30.6 % off.",
                "1506.02438",
                "2402.19446",
                "2510.16907",
                advantage=AdvantageSpec(kind="turn_gae", gamma=1.0, lam=1.0, whiten=False),
                **_OF_VALUES,
            ),
            _row(
                "turn_return",
                "Each turn learns from what it and the later turns earn. Unbiased; token mean 1.9 % off.",
                "Williams, 1992",
                advantage=AdvantageSpec(kind="turn_return"),
                **_OF_TURNS,
            ),
            _row(
                "turn_rloo",
                "MT-GRPO corrected: a turn's return less the others' there. Unbiased; token mean 2.2 % off.",
                "2402.14740",
                advantage=AdvantageSpec(kind="turn_rloo"),
                **_OF_TURNS,
            ),
            _row(
                "state_rloo",
                "A turn's return less that of the others in that state. Unbiased; token mean 2.2 % off.",
                "2402.14740",
                "2505.10978",
                advantage=AdvantageSpec(kind="state_rloo"),
                **_OF_TURNS,
            ),
            _row(
                "progress",
                "Each turn earns the rise of the state's given value, too. Unbiased; token mean 11.3 % off.",
                "Ng, Harada and Russell, 1999",
                advantage=AdvantageSpec(kind="progress"),
                **_OF_TURNS,
            ),
            _row(
                "gigpo",
                "Normalised rewards of rollouts, and of turns in one state. Biased.",
                "2505.10978",
                advantage=AdvantageSpec(kind="gigpo", gamma=0.95),
                loss=CLIP,
                aggregation=SEQUENCE_MEAN,
                zero_advantage="count",
            ),
            _row(
                "mt_grpo",
                "Normalised rewards of rollouts, and of turns at one place. Biased.",
                "2505.11821",
                advantage=AdvantageSpec(kind="mt_grpo", credit="turn"),
                loss=CLIP,
                aggregation=SEQUENCE_MEAN,
                zero_advantage="count",
            ),
            _row(
                "turn_tree",
                "A turn earns the rise of the mean reward below it in the tree of rollouts. Biased.",
                "2505.23564",
                advantage=AdvantageSpec(kind="turn_tree"),
                loss=CLIP,
                aggregation=SEQUENCE_MEAN,
                zero_advantage="count",
            ),
            _row(
                "distillation",
                "A teacher's opinion of every sampled token in place of rewards: reverse KL.",
                "2306.13649",
                advantage=AdvantageSpec(kind="distillation"),
                loss=LossSpec(name="importance_sampling"),
                zero_advantage="count",
                needs=("teacher",),
                aggregation=TOKEN_MEAN,
            ),
            _row(
                "sft",
                "Cross-entropy of what is shown.",
                "2203.02155",
                advantage=AdvantageSpec(kind="none"),
                loss=LossSpec(name="cross_entropy"),
                zero_advantage="count",
                aggregation=TOKEN_MEAN,
            ),
        )
    )
)


def find_row(name: str) -> Row:
    """Raises ConfigurationError for a name that is not in the table, listing those that are."""
    if name not in TABLE:
        raise ConfigurationError(
            f"Unknown algorithm {name!r}{spelling_hint(name, TABLE)}. Known: {', '.join(TABLE)}."
        )
    return TABLE[name]


def spelling_hint(name: str, known: Iterable[str]) -> str:
    """A guess at a misspelt name, for a message."""
    guess = did_you_mean(name, known)
    return f" ({guess})" if guess else ""
