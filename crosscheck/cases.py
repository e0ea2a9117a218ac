"""Our side of every case that a peer computes: the library's own functions on the same fixtures.

A named algorithm is taken from the table as it stands; what a case changes is spelled out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from art.batch.advantages import advantages
from art.batch.algorithms import resolve
from art.batch.checked_rollouts import overlong_penalty
from art.batch.part_advantages import part_advantages
from art.training.critic import Critic
from art.training.first_pass import FirstScores, highest_entropies
from art.training.losses.base import LossInputs
from art.training.losses.compose import kl_loss
from art.training.losses.registry import make_loss
from art.training.minibatches import EntryColumns
from art.training.token_advantages import gae, shape_advantages, whiten
from art.wire.algorithm import (
    AdvantageSpec,
    AggregationSpec,
    Algorithm,
    CriticSpec,
    KlSpec,
    LossSpec,
    OverlongSpec,
)
from art_extensions.preferences.losses import preference_algorithm
from crosscheck import step_cases
from crosscheck.fixtures import SIZE, TOKENS
from crosscheck.inputs import Parts, Tensors, scored

GAMMA, LAM = 0.99, 0.9
COEFFICIENT = 0.1
"""Of the KL in the reward."""
SEVERAL_UPDATES: Mapping[str, Any] = MappingProxyType({"ratio_to": "trainer", "updates": {"epochs": 2}})
"""Peers divide by the logprobs before the step, which differ from the newest where a batch is used again."""
ONE_UPDATE: Mapping[str, Any] = MappingProxyType({"ratio_to": "sampler", "updates": {"epochs": 1}})
TOKEN_MEAN = AggregationSpec(kind="token_mean")
ANYTHING = 1e8
"""A bound that nothing reaches."""


def policy(x: Tensors, name: str, **parts: Any) -> Parts:
    """A row of the table with some parts exchanged."""
    algorithm = resolve(name, **{**SEVERAL_UPDATES, **parts})
    old = "old_BL" if algorithm.ratio_to == "trainer" else "sampler_BL"
    return by_algorithm(x, algorithm, old)


def by_algorithm(x: Tensors, algorithm: Algorithm, old: str) -> Parts:
    loss = make_loss(algorithm)
    return scored(x, "logprobs_BL", algorithm.aggregation, old, lambda y: loss(y).loss)


def clipped(x: Tensors, **parts: Any) -> Parts:
    """The clipped surrogate, its mean over all tokens."""
    return policy(x, "grpo", **{"aggregation": "token_mean", **parts})


def mismatch(x: Tensors, *corrections: dict[str, Any], **parts: Any) -> Parts:
    return clipped(x, mismatch=list(corrections), **parts)


def top_entropy(x: Tensors, share: float) -> Parts:
    """The same of the tokens that a step keeps."""
    entropies_E = x["entropies_BL"][x["mask_BL"].bool()]
    kept_E, _ = highest_entropies(entropies_E, share, torch.ones_like(entropies_E, dtype=torch.bool))
    algorithm = resolve("grpo", **SEVERAL_UPDATES, aggregation="token_mean", top_entropy=share)
    loss = make_loss(algorithm)
    return scored(
        x,
        "logprobs_BL",
        algorithm.aggregation,
        "old_BL",
        lambda y: loss(replace(y, kept_E=kept_E)).loss,
    )


def entropy_bonus(x: Tensors, coefficient: float) -> Parts:
    """The same with a bonus, of entropies that no gradient flows through."""
    loss, mask_BL = make_loss(resolve("grpo", **SEVERAL_UPDATES)), x["mask_BL"].bool()
    return scored(
        x,
        "logprobs_BL",
        TOKEN_MEAN,
        "old_BL",
        lambda y: loss(y).loss - coefficient * y.mean(x["entropies_BL"][mask_BL]),
    )


def kl(x: Tensors, estimator: Any) -> Parts:
    spec = KlSpec(estimator=estimator, coefficient=1.0)
    return scored(x, "logprobs_BL", TOKEN_MEAN, "old_BL", lambda y: kl_loss(spec, y))


def value(x: Tensors) -> Parts:
    mask_BL = x["mask_BL"].bool()

    def loss(y: LossInputs) -> torch.Tensor:
        old_E, returns_E = x["old_values_BL"][mask_BL], x["returns_BL"][mask_BL]
        return Critic.loss(y.logprobs_E, old_E, returns_E, y, CriticSpec(clip=0.2)).loss

    return scored(x, "values_BL", TOKEN_MEAN, "old_BL", loss)


def advantage(x: Tensors, kind: Any, **options: Any) -> Parts:
    mask_BL = x["mask_BL"]
    lengths_GS = mask_BL.sum(1).int().reshape(-1, SIZE).tolist()
    found = advantages(
        x["rewards_B"].reshape(-1, SIZE).tolist(), lengths_GS, AdvantageSpec(kind=kind, **options)
    )
    result_BL = torch.zeros_like(mask_BL)
    for row, one in enumerate(one for group in found for one in group):
        length = int(mask_BL[row].sum())
        result_BL[row, :length] = torch.as_tensor(one, dtype=torch.float64)
    return {"advantages": result_BL}


PART_WEIGHTS: Mapping[str, float] = MappingProxyType({"rewards_B": 2.0, "advantages_B": -0.5})
"""Two fixtures as the parts of a reward."""


def advantage_of_parts(x: Tensors) -> Parts:
    rows = [{name: float(x[name][row]) for name in PART_WEIGHTS} for row in range(len(x["mask_BL"]))]
    groups = [rows[start : start + SIZE] for start in range(0, len(rows), SIZE)]
    found = part_advantages(groups, PART_WEIGHTS, AdvantageSpec(kind="gdpo", std="sample"))
    advantages_B = torch.tensor([one for group in found for one in group], dtype=torch.float64)
    return {"advantages": advantages_B[:, None] * x["mask_BL"]}


def generalised(x: Tensors, mask: str = "mask_BL") -> Parts:
    mask_BL = x[mask].bool()
    sequence_E = mask_BL.nonzero()[:, 0]
    advantages_E, returns_E = gae(x["rewards_B"][sequence_E], x["values_BL"][mask_BL], sequence_E, GAMMA, LAM)
    parts = {"advantages": whiten(advantages_E), "returns": returns_E}
    return {name: torch.zeros_like(x[mask]).masked_scatter(mask_BL, part) for name, part in parts.items()}


def kl_in_reward(x: Tensors, kind: Any, **options: Any) -> Parts:
    """The advantages that a step is trained on, from what the policies say before it."""
    mask_BL = x["mask_BL"].bool()
    sequence_E = mask_BL.nonzero()[:, 0]
    algorithm = Algorithm(
        advantage=AdvantageSpec(kind=kind, **options),
        kl=KlSpec(estimator="k1", coefficient=COEFFICIENT, place="reward"),
    )
    columns = EntryColumns(
        sampled_E=x["sampler_BL"][mask_BL],
        advantage_E=x["rewards_B"][sequence_E],
        weight_E=torch.ones_like(sequence_E, dtype=torch.float64),
        sequence_E=sequence_E,
        reference_E=x["reference_BL"][mask_BL],
    )
    values_E = x["values_BL"][mask_BL] if kind == "gae" else None
    old_E = x["old_BL"][mask_BL]
    first = FirstScores(logprobs_E=old_E, entropies_E=torch.zeros_like(old_E), values_E=values_E)
    numbered = list(zip(x["rewards_B"].tolist(), range(len(mask_BL)), strict=True))
    groups = [numbered[start : start + SIZE] for start in range(0, len(numbered), SIZE)]
    shaped, _ = shape_advantages(columns, algorithm, first, groups)
    parts = {"advantages": shaped.advantage_E}
    if shaped.return_E is not None:
        parts["returns"] = shaped.return_E
    return {
        name: torch.zeros_like(x["mask_BL"]).masked_scatter(mask_BL, part) for name, part in parts.items()
    }


def preferences(x: Tensors, **params: Any) -> Parts:
    """Pairs of rows that follow each other, the chosen one first."""
    spec = LossSpec(name="preference", params={"beta": 0.1, **params})
    algorithm = preference_algorithm("dpo", spec, KlSpec(coefficient=0.1, place="term"))
    rows_B = torch.arange(len(x["mask_BL"]))
    return signed(x, algorithm, 1.0 - 2.0 * (rows_B % 2), rows_B // 2)


def labelled(x: Tensors) -> Parts:
    """Even rows are desirable. The reference point is what our scoring of the mismatched replies gives."""
    rows_B = torch.arange(len(x["mask_BL"]))
    kl = KlSpec(coefficient=0.1, place="term")
    scoring = preference_algorithm("kto", LossSpec(name="kto", params={"beta": 0.1}), kl)
    mismatched = {**x, "reference_BL": x["mismatched_reference_BL"]}
    scored = make_loss(scoring)(
        sequences(mismatched, x["mismatched_BL"], torch.ones(len(rows_B)), rows_B)
    ).metrics["objective/log_ratio"]
    point = max(0.0, scored.item())
    spec = LossSpec(name="kto", params={"beta": 0.1, "reference_point": point})
    signs_B = torch.where(rows_B % 2 == 0, 1.5, -0.5)
    parts = signed(x, preference_algorithm("kto", spec, kl), signs_B, rows_B)
    return {**parts, "reference point": torch.tensor([point], dtype=torch.float64)}


def signed(x: Tensors, algorithm: Algorithm, signs_B: torch.Tensor, sequence_B: torch.Tensor) -> Parts:
    variable_BL = x["logprobs_BL"].clone().requires_grad_()
    loss = make_loss(algorithm)(sequences(x, variable_BL, signs_B, sequence_B)).loss
    (gradient,) = torch.autograd.grad(loss, variable_BL)
    return {"loss": loss.detach().reshape(1), "gradient": gradient}


def sequences(
    x: Tensors, logprobs_BL: torch.Tensor, signs_B: torch.Tensor, sequence_B: torch.Tensor
) -> LossInputs:
    """Rows as signed entries of their sequences, which are weighed by their number alone."""
    mask_BL = x["mask_BL"].bool()
    row_E = mask_BL.nonzero()[:, 0]
    logprobs_E = logprobs_BL[mask_BL]
    return LossInputs(
        logprobs_E=logprobs_E,
        sampled_logprobs_E=logprobs_E.detach(),
        proximal_logprobs_E=logprobs_E.detach(),
        reference_logprobs_E=x["reference_BL"][mask_BL],
        advantages_E=signs_B.double()[row_E],
        weights_E=torch.ones_like(logprobs_E),
        sequence_E=sequence_B[row_E],
        normalizer=float(len(set(sequence_B.tolist()))),
    )


def reward_model(x: Tensors) -> Parts:
    """Pairs of rows that follow each other. The score of a row is the logprob of its first token minus that
    of its second: of the answers "1" and "0".
    """
    spec = LossSpec(name="preference", params={"beta": 1.0})
    loss = make_loss(preference_algorithm("reward_model", spec, None))
    answers_BL = x["logprobs_BL"].clone().requires_grad_()
    rows_B = torch.arange(len(answers_BL))
    better_B = 1.0 - 2.0 * (rows_B % 2)
    y = LossInputs(
        logprobs_E=answers_BL[:, :2].flatten(),
        sampled_logprobs_E=x["sampler_BL"][:, :2].flatten(),
        proximal_logprobs_E=x["old_BL"][:, :2].flatten(),
        reference_logprobs_E=None,
        # The good answer of the chosen side and the bad one of the other are better.
        advantages_E=torch.stack([better_B, -better_B], 1).flatten().double(),
        weights_E=torch.ones(2 * len(rows_B), dtype=torch.float64),
        sequence_E=(rows_B // 2).repeat_interleave(2),
        normalizer=float(len(rows_B) // 2),
    )
    value = loss(y)
    (gradient,) = torch.autograd.grad(value.loss, answers_BL)
    margin = value.metrics["objective/margin"]
    return {
        "loss": value.loss.detach().reshape(1),
        "gradient": gradient,
        "margin": margin.detach().reshape(1),
    }


def overlong(x: Tensors) -> Parts:
    spec = OverlongSpec(limit=TOKENS, band=4)
    penalties = [overlong_penalty(int(length), spec) for length in x["mask_BL"].sum(1)]
    return {"rewards": x["rewards_B"] + torch.tensor(penalties, dtype=torch.float64)}


def bound(kind: str, low: float, high: float) -> dict[str, Any]:
    return {"kind": kind, "low": low, "high": high}


CASES: Mapping[str, Callable[[Tensors], Parts]] = MappingProxyType(
    {
        "ppo": clipped,
        "ppo, clip higher": lambda x: policy(x, "dapo"),
        "ppo, sequence mean": lambda x: policy(x, "grpo"),
        "ppo, constant": lambda x: policy(x, "dr_grpo", aggregation={"length": TOKENS}),
        "dual clip": lambda x: policy(x, "dual_clip"),
        "two-sided clip": lambda x: policy(x, "two_sided", loss={"params": {"delta": 2.0}}),
        "cispo": lambda x: policy(x, "cispo", loss={"params": {"epsilon": 0.2, "epsilon_high": 0.2}}),
        "cispo, bounded above": lambda x: policy(x, "cispo", loss={"params": {"epsilon_high": 1.0}}),
        "gspo": lambda x: policy(x, "gspo"),
        "gmpo": lambda x: policy(x, "gmpo"),
        "sapo": lambda x: policy(x, "sapo"),
        "dppo": lambda x: policy(x, "dppo"),
        "vespo": lambda x: policy(x, "vespo"),
        "reinforce": lambda x: policy(x, "reinforce", **ONE_UPDATE),
        "importance sampling": lambda x: policy(x, "importance_sampling"),
        "supervised": lambda x: policy(x, "sft", **ONE_UPDATE),
        "ppo + kl k3": lambda x: clipped(x, kl={"coefficient": 0.1}),
        "ppo + kl k3, importance": lambda x: clipped(x, kl={"coefficient": 0.1, "importance": True}),
        "top entropy": lambda x: top_entropy(x, 0.2),
        "entropy bonus": lambda x: entropy_bonus(x, 0.1),
        "mismatch token_truncate": lambda x: mismatch(x, bound("token_truncate", 0.0, 1.2)),
        "mismatch token_clip": lambda x: mismatch(x, bound("token_truncate", 0.8, 1.25)),
        "mismatch sequence_truncate": lambda x: mismatch(x, bound("sequence_truncate", 0.0, 1.2)),
        "mismatch token_mask": lambda x: mismatch(x, bound("token_mask", 0.8, 1.25)),
        "mismatch sequence_mask": lambda x: mismatch(x, bound("sequence_mask", 0.8, 1.25)),
        "mismatch geometric_mask": lambda x: mismatch(x, bound("geometric_mask", 0.95, 1 / 0.95)),
        "mismatch geometric_mask, token weight": lambda x: mismatch(
            x, bound("geometric_mask", 0.95, 1 / 0.95), bound("token_truncate", 0.0, ANYTHING)
        ),
        "mismatch negative_mask": lambda x: mismatch(
            x, bound("negative_mask", 0.0, 0.05), ratio_to="sampler"
        ),
        "kl k1": lambda x: kl(x, "k1"),
        "kl k2": lambda x: kl(x, "k2"),
        "kl k3": lambda x: kl(x, "k3"),
        "value": value,
        "overlong": overlong,
        "dpo": preferences,
        "dpo, length normalised": lambda x: preferences(x, length_normalised=True),
        "dpo, label smoothing": lambda x: preferences(x, label_smoothing=0.1),
        "ipo": lambda x: preferences(x, ipo=True),
        "ipo, length normalised": lambda x: preferences(x, ipo=True, length_normalised=True),
        "kto": labelled,
        "reward model": reward_model,
        "refill": step_cases.refill,
        "entropy, adaptive": step_cases.adaptive_entropy,
        "reference, average": lambda x: step_cases.average(x, None),
        "reference, average, every": lambda x: step_cases.average(x, step_cases.EVERY),
        "reference, every": step_cases.every_step,
        "optimizer adamw_8bit": lambda x: step_cases.optimized(x, "adamw_8bit"),
        "optimizer muon": lambda x: step_cases.optimized(x, "muon", weight_decay=0.0),
        "advantage group": lambda x: advantage(x, "group", std="sample"),
        "advantage centered": lambda x: advantage(x, "centered"),
        "advantage batch_std": lambda x: advantage(x, "batch_std", std="sample"),
        "advantage gdpo": advantage_of_parts,
        "advantage rloo": lambda x: advantage(x, "rloo"),
        "advantage reinforce++": lambda x: advantage(x, "reinforce++", std="sample", gamma=0.95),
        "advantage reinforce++_baseline": lambda x: advantage(x, "reinforce++_baseline", std="sample"),
        "advantage gae": generalised,
        "advantage gae, holes": lambda x: generalised(x, "holes_BL"),
        "kl in reward, group": lambda x: kl_in_reward(x, "group", std="sample"),
        "kl in reward, centered": lambda x: kl_in_reward(x, "centered"),
        "kl in reward, rloo": lambda x: kl_in_reward(x, "rloo"),
        "kl in reward, reinforce++": lambda x: kl_in_reward(x, "reinforce++", std="sample", gamma=0.95),
        "kl in reward, reinforce++_baseline": lambda x: kl_in_reward(x, "reinforce++_baseline", std="sample"),
        "kl in reward, gae": lambda x: kl_in_reward(x, "gae", gamma=GAMMA, lam=LAM),
    }
)
