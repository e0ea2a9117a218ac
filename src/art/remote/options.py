"""Options of training: each acts, or is refused with the known ones listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from art.errors import ConfigurationError
from art.wire.algorithm import AdvantageSpec, LossSpec
from art.wire.training import LoraSpec, OptimizerSpec

PEFT_ARGS = {
    "r": "r",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "target_modules": "targets",
    "random_state": "seed",
}
TRAINER_ARGS = {
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "eps",
    "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm",
}
SYMMETRIC = frozenset({"grpo", "ppo"})
"""Losses whose upper clip bound is the lower one's where only that is given."""
ADAM_PARAMS = {
    "betas": "betas",
    "eps": "eps",
    "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm",
}

# Known names whose other values have no effect here yet: only these values are taken.
_ONLY: dict[str, tuple[Any, ...]] = {
    "kl_penalty_coef": (0, 0.0, None),
    "kl_penalty_reference_step": (None,),
    "kl_ref_adapter_path": (None,),
    "grad_accumulation_sequences": (None,),
    "advantage_balance": (0, 0.0, None),
    "importance_sampling_level": ("token",),
    "max_negative_advantage_importance_sampling_weight": (None,),
    "mask_prob_ratio": (False,),
    "kimi_k2_tau": (None,),
    "precalculate_logprobs": (False,),
    "allow_training_without_logprobs": (False,),
    "plot_tensors": (False,),
    "truncated_importance_sampling": (None,),
    "scale_learning_rate_by_reward_std_dev": (False,),
    "num_trajectories_learning_rate_multiplier_power": (0, 0.0),
    "packed_sequence_length": (None,),
    "save_checkpoint": (True,),
}
KNOWN = (
    "learning_rate",
    "loss_fn",
    "loss_fn_config",
    "epsilon",
    "epsilon_high",
    "adam_params",
    "normalize_advantages",
    "scale_rewards",
    "expected_step",
    "verbose",
)


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a keyword of `train` that nobody knows, or a value that would not act."""
    known = ", ".join(sorted(KNOWN))
    for name, value in options.items():
        if name not in _ONLY:
            raise ConfigurationError(f"train({name}={value!r}): no such option; known: {known}")
        if value not in _ONLY[name]:
            only = _ONLY[name][0]
            raise ConfigurationError(f"train({name}={value!r}): only {only!r} is supported; known: {known}")


def lora_spec(internal_config: Mapping[str, Any] | None) -> tuple[LoraSpec, int]:
    """The adapter's shape and the seed, from `_internal_config["peft_args"]`."""
    given = _translated("peft_args", (internal_config or {}).get("peft_args"), PEFT_ARGS)
    seed = given.pop("seed", 0)
    if "targets" in given:
        given["targets"] = list(given["targets"])
    try:
        return LoraSpec(**given), int(seed)
    except ValidationError as error:
        raise ConfigurationError(f"_internal_config['peft_args'] is refused: {error}") from error


def check_internal_config(internal_config: Mapping[str, Any] | None) -> None:
    """Raise ConfigurationError for a section that has no effect."""
    for name in internal_config or {}:
        if name not in ("peft_args", "trainer_args"):
            raise ConfigurationError(
                f"_internal_config[{name!r}]: no such section; known: peft_args, trainer_args"
            )


def optimizer_spec(
    learning_rate: float, internal_config: Mapping[str, Any] | None, adam_params: Mapping[str, Any] | None
) -> OptimizerSpec:
    """AdamW's settings: `trainer_args` of the model, over them `adam_params` of the call."""
    given = _translated("trainer_args", (internal_config or {}).get("trainer_args"), TRAINER_ARGS)
    betas = OptimizerSpec.model_fields["betas"].default
    betas = (given.pop("beta1", betas[0]), given.pop("beta2", betas[1]))
    given |= _translated("adam_params", adam_params, ADAM_PARAMS)
    try:
        return OptimizerSpec(**{"learning_rate": learning_rate, "betas": betas, **given})
    except ValidationError as error:
        raise ConfigurationError(f"the optimizer's settings are refused: {error}") from error


def loss_spec(
    loss_fn: str, loss_fn_config: Mapping[str, Any] | None, epsilon: float | None, epsilon_high: float | None
) -> LossSpec:
    """The loss by name; the trainer knows the names and parameters and refuses others."""
    if loss_fn in SYMMETRIC and epsilon_high is None:
        epsilon_high = epsilon
    clip = {"epsilon": epsilon, "epsilon_high": epsilon_high}
    params = {**(loss_fn_config or {}), **{name: value for name, value in clip.items() if value is not None}}
    return LossSpec(name=loss_fn, params=params)


def advantages(*, normalize_advantages: bool, scale_rewards: bool) -> AdvantageSpec:
    """Divided by the group's standard deviation, or only centred."""
    return AdvantageSpec(kind="group" if normalize_advantages and scale_rewards else "centered")


def _translated(section: str, given: Mapping[str, Any] | None, names: Mapping[str, str]) -> dict[str, Any]:
    for name, value in (given or {}).items():
        if name not in names:
            raise ConfigurationError(
                f"{section}[{name!r}] = {value!r}: no such option; known: {', '.join(sorted(names))}"
            )
    return {names[name]: value for name, value in (given or {}).items()}
