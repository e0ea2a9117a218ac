"""From the keywords of `train` to one algorithm: each acts on its part, or is refused with the reason."""

from __future__ import annotations

import math
from typing import Any

import pytest

import art
from art.batch.algorithms import TABLE, resolve
from art.client.options.train_options import refuse_unknown_keywords
from art.client.requests.registration import optimizer_spec
from art.client.requests.train_request import algorithm_of
from art.errors import ConfigurationError
from art.wire.algorithm import (
    AdvantageSpec,
    AggregationSpec,
    Algorithm,
    EntropySpec,
    KlSpec,
    LossSpec,
    MismatchSpec,
    UpdatesSpec,
)


def chosen(**options: Any) -> Algorithm:
    refuse_unknown_keywords(options)
    return algorithm_of(options)


# By name, by parts, as an object


def test_nothing_said_is_art_with_group_advantages_and_every_rollout_counting_the_same() -> None:
    default = chosen()
    assert default == resolve("art") and default.advantage == AdvantageSpec(kind="group")
    assert default.aggregation == AggregationSpec(kind="sequence_mean")
    assert chosen(loss_fn="cispo") == chosen(ppo=False) == chosen(algorithm={}) == default
    assert chosen(algorithm="cispo").aggregation == AggregationSpec(kind="token_mean")


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not row.needs])
def test_every_row_of_the_table_by_its_name(name: str) -> None:
    assert chosen(algorithm=name) == resolve(name)


def test_parts_and_objects() -> None:
    parts = {"name": "dapo", "kl": {"coefficient": 0.001}, "overlong": None}
    assert chosen(algorithm=parts) == resolve("dapo", kl={"coefficient": 0.001}, overlong=None)
    assert chosen(algorithm={"advantage": "rloo"}).advantage.kind == "rloo"
    spelled = art.Algorithm(name="mine", advantage=AdvantageSpec(kind="maxrl"))
    assert chosen(algorithm=spelled) == spelled


@pytest.mark.parametrize("name", ["cispo", "ppo", "grpo"])
def test_a_loss_alone_keeps_the_other_parts(name: str) -> None:
    algorithm = chosen(loss_fn=name)
    assert algorithm.loss.name == name
    assert (algorithm.advantage, algorithm.aggregation) == (Algorithm().advantage, Algorithm().aggregation)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"algorithm": "grpoo"}, "did you mean 'grpo'"),
        ({"algorithm": {"name": "grpo", "advantag": "rloo"}}, "no part 'advantag'"),
        ({"algorithm": 3}, "a name, a dict of parts"),
        ({"algorithm": "grpo", "loss_fn": "ppo"}, "the algorithm has a loss"),
        ({"loss_fn": "gspo"}, "algorithm='gspo'"),
        ({"loss_fn": "no_such_loss"}, "Known: cispo, "),
        ({"algorithm": "distillation"}, "need a teacher"),
        ({"algorithm": Algorithm(critic={})}, "critic"),
        ({"algorithm": "cispo", "beta": 0.1}, r"train\(beta=0.1\): no such option"),
    ],
)
def test_what_is_unknown_or_does_not_fit_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        chosen(**options)


# The older keywords


@pytest.mark.parametrize(
    ("options", "part", "value"),
    [
        ({"epsilon": 0.3}, "loss", LossSpec(name="cispo", params={"epsilon": 0.3, "epsilon_high": 4.0})),
        (
            {"loss_fn": "ppo", "epsilon": 0.3},
            "loss",
            LossSpec(name="ppo", params={"epsilon": 0.3, "epsilon_high": 0.3}),
        ),
        (
            {"algorithm": "dapo", "epsilon": 0.1},
            "loss",
            LossSpec(name="ppo", params={"epsilon": 0.1, "epsilon_high": 0.28}),
        ),
        (
            {"algorithm": "dapo", "loss_fn_config": {"dual_clip": 3.0}},
            "loss",
            LossSpec(name="ppo", params={"epsilon": 0.2, "epsilon_high": 0.28, "dual_clip": 3.0}),
        ),
        ({"normalize_advantages": False}, "advantage", AdvantageSpec(kind="centered")),
        ({"scale_rewards": False}, "advantage", AdvantageSpec(kind="centered")),
        ({"algorithm": "rloo", "scale_rewards": False}, "advantage", AdvantageSpec(kind="rloo")),
        ({"advantage_balance": -0.5}, "advantage", AdvantageSpec(kind="group", balance=-0.5)),
        ({"importance_sampling_level": "sequence"}, "ratio", "sequence"),
        ({"importance_sampling_level": "geometric_average"}, "ratio", "geometric_average"),
        (
            {"kl_penalty_coef": 0.1},
            "kl",
            KlSpec(estimator="k1", coefficient=0.1, place="shaped_advantage", reference="base"),
        ),
        (
            {"kl_penalty_coef": 0.1, "kl_penalty_reference_step": 4},
            "kl",
            KlSpec(estimator="k1", coefficient=0.1, place="shaped_advantage", reference="step", step=4),
        ),
        (
            {"kl_penalty_coef": 0.1, "kl_penalty_step_lag": 4, "kl_penalty_source": "sample"},
            "kl",
            KlSpec(
                estimator="k1",
                coefficient=0.1,
                place="shaped_advantage",
                reference="step",
                lag=4,
                source="sampler",
            ),
        ),
        (
            {"kl_penalty_coef": 0.1, "kl_penalty_reference_step": 4, "kl_ref_adapter_path": "/x"},
            "kl",
            KlSpec(estimator="k1", coefficient=0.1, place="shaped_advantage", reference="adapter", path="/x"),
        ),
        (
            {"kl_penalty_coef": 0.1, "kl_penalty_sync_steps": 4},
            "kl",
            KlSpec(estimator="k1", coefficient=0.1, place="shaped_advantage", reference="step", every=4),
        ),
        (
            {"kl_penalty_coef": 0.1, "kl_penalty_mixup": 0.6},
            "kl",
            KlSpec(estimator="k1", coefficient=0.1, place="shaped_advantage", reference="average", mixup=0.6),
        ),
        (
            {"kl_penalty_coef": 0.1, "kl_penalty_mixup": 0.6, "kl_penalty_sync_steps": 4},
            "kl",
            KlSpec(
                estimator="k1",
                coefficient=0.1,
                place="shaped_advantage",
                reference="average",
                mixup=0.6,
                every=4,
            ),
        ),
        ({"entropy": 0.01}, "entropy", EntropySpec(coefficient=0.01)),
        ({"entropy": {"coefficient": 1}}, "entropy", EntropySpec(coefficient=1.0)),
        (
            {"entropy": {"target": 0.2, "step": 0.005}},
            "entropy",
            EntropySpec(coefficient=0.0, target=0.2, step=0.005),
        ),
        ({"algorithm": {"entropy": {"coefficient": 0.1}}, "entropy": 0}, "entropy", None),
        ({"top_entropy": 0.2}, "top_entropy", 0.2),
        ({"algorithm": {"top_entropy": 0.2}, "top_entropy": 1}, "top_entropy", None),
        ({"ppo": True}, "loss", LossSpec(name="ppo", params={})),
        ({"grad_accumulation_sequences": 4}, "updates", UpdatesSpec(sequences=4)),
        (
            {"algorithm": {"updates": {"minibatches": 3, "epochs": 2}}, "grad_accumulation_sequences": 4},
            "updates",
            UpdatesSpec(sequences=4, epochs=2),
        ),
        ({"precalculate_logprobs": True}, "loss", LossSpec(name="reinforce")),
        (
            {"precalculate_logprobs": True, "loss_fn": "ppo", "importance_sampling_level": "sequence"},
            "loss",
            LossSpec(name="reinforce"),
        ),
        (
            {"kimi_k2_tau": 0.01},
            "kl",
            KlSpec(estimator="k1", coefficient=0.01, place="advantage", reference="sampler"),
        ),
        (
            {"truncated_importance_sampling": 2.0},
            "mismatch",
            [MismatchSpec(kind="token_truncate", high=2.0)],
        ),
        ({"truncated_importance_sampling": 2.0}, "ratio_to", "trainer"),
        (
            {"precalculate_logprobs": True, "algorithm": {"name": "grpo", "updates": {"epochs": 2}}},
            "ratio_to",
            "trainer",
        ),
        (
            {"loss_fn": "ppo", "mask_prob_ratio": True},
            "mismatch",
            [MismatchSpec(kind="token_mask", low=0.8, high=1.2)],
        ),
        (
            {"max_negative_advantage_importance_sampling_weight": 3.0},
            "loss",
            LossSpec(name="cispo", params={"epsilon": 1.0, "epsilon_high": 2.0}),
        ),
        (
            {"loss_fn": "ppo", "max_negative_advantage_importance_sampling_weight": 3.0},
            "loss",
            LossSpec(name="ppo", params={"delta": 3.0}),
        ),
        (
            {"algorithm": "dual_clip", "max_negative_advantage_importance_sampling_weight": 2.0},
            "loss",
            LossSpec(name="ppo", params={"epsilon": 0.2, "epsilon_high": 0.2, "dual_clip": 2.0}),
        ),
    ],
)
def test_an_older_keyword_acts_on_its_part_alone(options: dict[str, Any], part: str, value: object) -> None:
    algorithm = chosen(**options)
    assert getattr(algorithm, part) == value
    plain = {name: options[name] for name in ("algorithm", "loss_fn") if name in options}
    others = {"name", part, "ratio_to"} | ({"mismatch"} if part == "ratio_to" else set())
    assert algorithm.model_dump(exclude=others) == chosen(**plain).model_dump(exclude=others)


@pytest.mark.parametrize(
    "options",
    [
        {"kl_penalty_coef": 0.0, "kimi_k2_tau": None, "advantage_balance": 0.0, "epsilon": None},
        {"importance_sampling_level": "token", "mask_prob_ratio": False, "precalculate_logprobs": False},
        {"truncated_importance_sampling": None, "kl_penalty_coef": None, "plot_tensors": False},
        {"entropy": 0, "top_entropy": 1, "kl_penalty_coef": 0.0},
        {"entropy": None, "top_entropy": None, "kl_penalty_mixup": None, "kl_penalty_sync_steps": None},
    ],
)
def test_neutral_values_change_nothing(options: dict[str, Any]) -> None:
    assert chosen(**options) == chosen()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kl_penalty_reference_step": 3}, "kl_penalty_coef"),
        ({"kl_penalty_step_lag": 3}, "kl_penalty_coef"),
        ({"kl_penalty_source": "sample"}, "kl_penalty_coef"),
        ({"kl_penalty_sync_steps": 3}, "kl_penalty_sync_steps=3.*kl_penalty_coef"),
        ({"kl_penalty_mixup": 0.3}, "kl_penalty_mixup=0.3.*kl_penalty_coef"),
        (
            {"kl_penalty_coef": 0.1, "kl_penalty_step_lag": 3, "kl_penalty_mixup": 0.3},
            "step_lag=3, kl_penalty_mixup=0.3.: give one reference",
        ),
        (
            {"kl_penalty_coef": 0.1, "kl_penalty_sync_steps": 3, "kl_ref_adapter_path": "/x"},
            "sync_steps=3, kl_ref_adapter_path='/x'.: give one reference",
        ),
        ({"kl_penalty_coef": 0.1, "kl_penalty_mixup": 0.0}, "kl_penalty_mixup=0.0.*above 0"),
        ({"kl_penalty_coef": 0.1, "kl_penalty_mixup": 1.0}, "mixup: .*less than 1, not 1.0"),
        ({"kl_penalty_coef": 0.1, "kl_penalty_sync_steps": 0}, "a whole number of at least 1"),
        ({"entropy": -0.1}, "entropy.coefficient: .*greater than or equal to 0, not -0.1"),
        ({"entropy": math.nan}, "entropy.coefficient: .*finite number"),
        ({"entropy": math.inf}, "entropy.coefficient: .*finite number"),
        ({"entropy": True}, "entropy: .*not True"),
        ({"entropy": "high"}, "entropy: .*not 'high'"),
        ({"entropy": {"coefficient": 0}}, "coefficient 0 without target would not act"),
        ({"entropy": {"coefficient": 0.1, "target": 0.2}}, "needs both"),
        ({"entropy": {"coefficient": 0.1, "step": 0.2}}, "needs both"),
        ({"entropy": {"target": -0.2, "step": 0.1}}, "entropy.target: .*greater than 0, not -0.2"),
        ({"entropy": {"target": math.nan, "step": 0.1}}, "entropy.target: .*finite number"),
        ({"entropy": {"target": 0.2, "step": -0.1}}, "entropy.step: .*greater than 0, not -0.1"),
        ({"entropy": {"coef": 0.1}}, "entropy.coef"),
        ({"algorithm": "sft", "entropy": 0.1}, "these tokens are shown"),
        ({"algorithm": "sft", "top_entropy": 0.1}, "these tokens are shown"),
        ({"algorithm": "gspo", "top_entropy": 0.1}, "selects single tokens"),
        ({"top_entropy": 0}, "top_entropy=0.*above 0"),
        ({"top_entropy": 1.5}, "top_entropy=1.5.*at most 1"),
        ({"top_entropy": math.nan}, "top_entropy=nan"),
        (
            {"kl_penalty_coef": 0.1, "kl_penalty_step_lag": 3, "kl_penalty_reference_step": 3},
            "kl_penalty_reference_step=3.: give one reference",
        ),
        ({"kl_penalty_coef": 0.1, "kimi_k2_tau": 0.1}, "one KL term"),
        ({"kl_penalty_coef": -0.1}, "kl_penalty_coef=-0.1.*at least 0"),
        ({"kl_penalty_coef": 0.1, "algorithm": {"kl": {"coefficient": 1.0}}}, "one KL term"),
        ({"algorithm": "reinforce++", "scale_rewards": False}, r"scale_rewards=False.*'reinforce\+\+'"),
        ({"advantage_balance": 3}, "advantage_balance=3.*of at least -1 and of at most 1"),
        ({"importance_sampling_level": "batch"}, "ratio: .*not 'batch'"),
        ({"algorithm": "sapo", "mask_prob_ratio": True}, "loss 'sapo' has none"),
        ({"algorithm": "sapo", "max_negative_advantage_importance_sampling_weight": 2.0}, "loss 'sapo'"),
        ({"max_negative_advantage_importance_sampling_weight": 0.5}, "at least 1"),
        (
            {"loss_fn": "ppo", "max_negative_advantage_importance_sampling_weight": 1.1},
            r"above 1 \+ epsilon_high = 1.2",
        ),
        (
            {"importance_sampling_level": "sequence", "truncated_importance_sampling": 2.0},
            "corrects single tokens",
        ),
        ({"kl_ref_adapter_path": "/x"}, "kl_penalty_coef"),
        ({"ppo": True, "loss_fn": "cispo"}, "both choose the loss"),
        ({"ppo": False, "algorithm": "grpo"}, "both choose the loss"),
    ],
)
def test_what_would_not_act_is_refused_with_the_reason(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        chosen(**options)


def test_the_weight_bound_is_that_of_every_ratio() -> None:
    """PPO by upstream's definition, the ratio cut first, against the two-sided clip that it becomes."""
    cap, low, high = 3.0, 0.8, 1.2
    params = chosen(
        loss_fn="ppo", epsilon=0.2, max_negative_advantage_importance_sampling_weight=cap
    ).loss.params
    for ratio in (0.1, 0.8, 1.0, 1.2, 1.5, 3.0, 7.0):
        for advantage in (-1.0, 1.0):
            cut = min(ratio, cap)
            theirs = min(cut * advantage, min(max(cut, low), high) * advantage)
            ours = min(min(ratio, params["delta"]) * advantage, min(max(ratio, low), high) * advantage)
            assert ours == theirs


# The optimizer


def test_a_rate_by_the_literature_and_schedules() -> None:
    internal = {"trainer_args": {"warmup_steps": 3, "lr_scheduler_type": "cosine", "max_steps": 40}}
    spec = optimizer_spec(None, internal, {"warmup_steps": 5})
    assert spec.learning_rate is None
    assert (spec.schedule, spec.warmup_steps, spec.total_steps) == ("cosine", 5, 40)
    warm = optimizer_spec(1e-4, {"trainer_args": {"lr_scheduler_type": "constant_with_warmup"}}, None)
    assert warm.schedule == "constant"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"lr_scheduler_type": "cosine"}, "total_steps None"),
        ({"lr_scheduler_type": "linear", "max_steps": 3, "warmup_steps": 3}, "above the warm-up's"),
        ({"lr_scheduler_type": "polynomial", "max_steps": 3}, "schedule"),
        ({"warmup_steps": -1}, "warmup_steps"),
    ],
)
def test_schedules_without_an_end_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        optimizer_spec(1e-4, {"trainer_args": arguments}, None)
