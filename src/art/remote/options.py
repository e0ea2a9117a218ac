"""Options of training: each acts, or is refused with the known ones listed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from art.errors import ConfigurationError
from art.remote.algorithm import AlgorithmOptions, choose_algorithm
from art.wire.algorithm import Algorithm
from art.wire.training import LoraSpec, OptimizerSpec

PEFT_ARGS = {
    "r": "r",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "target_modules": "targets",
    "use_rslora": "use_rslora",
    "random_state": "seed",
}
SCHEDULE = {"warmup_steps": "warmup_steps", "lr_scheduler_type": "schedule", "max_steps": "total_steps"}
ADAM_PARAMS = {
    "betas": "betas",
    "eps": "eps",
    "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm",
    **SCHEDULE,
}
INIT_ARGS = {"full_finetuning": "full"}
SECTIONS = ("init_args", "peft_args", "trainer_args")
TRAINER_ARGS = {
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "eps",
    "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm",
    **SCHEDULE,
}
SCHEDULES = {"constant_with_warmup": "constant"}
"""Other names of schedules."""

# Known names whose other values have no effect here yet: only these values are taken.
_ONLY: dict[str, tuple[Any, ...]] = {
    "kl_ref_adapter_path": (None,),
    "grad_accumulation_sequences": (None,),
    "allow_training_without_logprobs": (False,),
    "plot_tensors": (False,),
    "scale_learning_rate_by_reward_std_dev": (False,),
    "num_trajectories_learning_rate_multiplier_power": (0, 0.0),
    "packed_sequence_length": (None,),
    "save_checkpoint": (True,),
}
KNOWN = (
    "learning_rate",
    "adam_params",
    "expected_step",
    "verbose",
    *(field.name for field in dataclasses.fields(AlgorithmOptions)),
)


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a keyword of `train` that nobody knows, or a value that would not act."""
    known = ", ".join(sorted(KNOWN))
    for name, value in options.items():
        if name in KNOWN:
            continue
        if name not in _ONLY:
            raise ConfigurationError(f"train({name}={value!r}): no such option; known: {known}")
        if value not in _ONLY[name]:
            only = _ONLY[name][0]
            raise ConfigurationError(f"train({name}={value!r}): only {only!r} is supported; known: {known}")


def algorithm_of(options: Mapping[str, Any]) -> Algorithm:
    """The algorithm that the keywords describe; keywords of other matters are left alone."""
    names = {field.name for field in dataclasses.fields(AlgorithmOptions)}
    return choose_algorithm(AlgorithmOptions(**{n: value for n, value in options.items() if n in names}))


def lora_spec(internal_config: Mapping[str, Any] | None) -> tuple[LoraSpec | None, int]:
    """The adapter's shape and the seed, from `_internal_config["peft_args"]`. None where all weights are
    trained: `_internal_config["init_args"] = {"full_finetuning": True}`.
    """
    given = _translated("peft_args", (internal_config or {}).get("peft_args"), PEFT_ARGS)
    seed = given.pop("seed", 0)
    whole = _translated("init_args", (internal_config or {}).get("init_args"), INIT_ARGS).get("full", False)
    if not isinstance(whole, bool):
        raise ConfigurationError(
            f"_internal_config['init_args']['full_finetuning'] is {whole!r}; it is True or False"
        )
    if whole:
        if given:
            raise ConfigurationError(
                f"_internal_config['peft_args'] gives a LoRA's {', '.join(sorted(given))}, but "
                "full_finetuning trains all weights and has none; leave one of both out"
            )
        return None, int(seed)
    if "targets" in given:
        given["targets"] = list(given["targets"])
    try:
        return LoraSpec(**given), int(seed)
    except ValidationError as error:
        raise ConfigurationError(f"_internal_config['peft_args'] is refused: {error}") from error


def check_internal_config(internal_config: Mapping[str, Any] | None) -> None:
    """Raise ConfigurationError for a section that has no effect."""
    for name in internal_config or {}:
        if name not in SECTIONS:
            raise ConfigurationError(
                f"_internal_config[{name!r}]: no such section; known: {', '.join(SECTIONS)}"
            )


def optimizer_spec(
    learning_rate: float | None,
    internal_config: Mapping[str, Any] | None,
    adam_params: Mapping[str, Any] | None,
) -> OptimizerSpec:
    """AdamW's settings: `trainer_args` of the model, over them `adam_params` of the call."""
    given = _translated("trainer_args", (internal_config or {}).get("trainer_args"), TRAINER_ARGS)
    betas = OptimizerSpec.model_fields["betas"].default
    betas = (given.pop("beta1", betas[0]), given.pop("beta2", betas[1]))
    given |= _translated("adam_params", adam_params, ADAM_PARAMS)
    given["schedule"] = SCHEDULES.get(given.get("schedule", ""), given.get("schedule", "constant"))
    try:
        return OptimizerSpec(**{"learning_rate": learning_rate, "betas": betas, **given})
    except ValidationError as error:
        raise ConfigurationError(f"the optimizer's settings are refused: {error}") from error


def _translated(section: str, given: Mapping[str, Any] | None, names: Mapping[str, str]) -> dict[str, Any]:
    for name, value in (given or {}).items():
        if name not in names:
            raise ConfigurationError(
                f"{section}[{name!r}] = {value!r}: no such option; known: {', '.join(sorted(names))}"
            )
    return {names[name]: value for name, value in (given or {}).items()}
