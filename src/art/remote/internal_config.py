"""`_internal_config` -> what a model is registered with, and its optimizer. `art.remote.config` has
the keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from art.errors import ConfigurationError
from art.remote.config.engine import ENGINE_ARGS
from art.remote.config.keys import read_keys
from art.remote.config.model import INIT_ARGS, PEFT_ARGS, SECTIONS, TINKER_ARGS
from art.remote.config.trainer import TRAINER_ARGS
from art.wire.flaws import first_flaw
from art.wire.training import LoraSpec, OptimizerSpec

LORA = {
    "r": "r",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "target_modules": "targets",
    "use_rslora": "use_rslora",
}
"""Keys of peft_args -> fields of LoraSpec."""
LENGTHS = (("init_args", "max_seq_length"), ("engine_args", "max_model_len"), ("peft_args", "max_seq_length"))
SEEDS = (("peft_args", "random_state"), ("init_args", "random_state"), ("trainer_args", "seed"))
"""The first that is given counts."""
SCHEDULES = {"constant_with_warmup": "constant"}
"""Other names of schedules."""
_BOTH = {
    "weight_decay": "weight_decay",
    "max_grad_norm": "max_grad_norm",
    "warmup_steps": "warmup_steps",
    "lr_scheduler_type": "schedule",
    "max_steps": "total_steps",
}
OPTIMIZER = {"adam_epsilon": "eps", **_BOTH}
"""Keys of trainer_args -> fields of OptimizerSpec."""
ADAM_PARAMS = {"betas": "betas", "eps": "eps", **_BOTH}
"""Keys of train's adam_params -> fields of OptimizerSpec."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """What of a configuration acts at `register`."""

    lora: LoraSpec | None
    """None: all weights are trained."""
    seed: int = 0
    max_context: int | None = None
    """Tokens of prompt and completion; None: what the model allows."""
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    special_tokens_in_text: Literal["text", "parse"] = "text"


def model_settings(config: Mapping[str, Any] | None, *, told: bool = True) -> ModelSettings:
    """Read a model's configuration. `told`: one line in the log for each key that has no effect here.

    Raises ConfigurationError for an unknown key, with the closest known one, for one that cannot act, with
    what to use instead, and for a value that is out of range.
    """
    sections = _sections(config, told=told)
    _check_gpus(config or {})
    # What is wrong with the optimizer is refused now, not after an hour of rollouts.
    optimizer_spec(1.0, config, None)
    return ModelSettings(
        lora=_lora(sections),
        seed=next(
            (_whole(sections, *where, least=0) for where in SEEDS if where[1] in sections[where[0]]), 0
        ),
        max_context=min(
            (_whole(sections, *where, least=1) for where in LENGTHS if where[1] in sections[where[0]]),
            default=None,
        ),
        chat_template=_template(sections["top"]),
        chat_template_kwargs=_template_kwargs(sections["top"]),
        special_tokens_in_text=_special_tokens(sections["top"]),
    )


def optimizer_spec(
    learning_rate: float | None, config: Mapping[str, Any] | None, adam_params: Mapping[str, Any] | None
) -> OptimizerSpec:
    """AdamW's settings: `trainer_args` of the model, over them `adam_params` of the call.

    learning_rate: None takes that of trainer_args, and without one what the literature gives.
    """
    given = read_keys(_where("trainer_args"), (config or {}).get("trainer_args"), TRAINER_ARGS, told=False)
    default = OptimizerSpec.model_fields["betas"].default
    fields: dict[str, Any] = {
        "learning_rate": given.get("learning_rate") if learning_rate is None else learning_rate,
        "betas": (given.get("adam_beta1", default[0]), given.get("adam_beta2", default[1])),
        **{OPTIMIZER[name]: value for name, value in given.items() if name in OPTIMIZER},
    }
    if "warmup_ratio" in given:
        fields.setdefault("warmup_steps", _warmup(given))
    for name, value in (adam_params or {}).items():
        if name not in ADAM_PARAMS:
            known = ", ".join(sorted(ADAM_PARAMS))
            raise ConfigurationError(f"adam_params[{name!r}] = {value!r}: no such key; known: {known}")
        fields[ADAM_PARAMS[name]] = value
    if fields.get("total_steps") == -1:  # transformers' word for no end
        del fields["total_steps"]
    schedule = str(getattr(fields.get("schedule", "constant"), "value", fields.get("schedule", "constant")))
    fields["schedule"] = SCHEDULES.get(schedule, schedule)
    try:
        return OptimizerSpec(**fields)
    except ValidationError as error:
        raise ConfigurationError(f"the optimizer's settings are refused: {first_flaw(error)}") from error


def _sections(config: Mapping[str, Any] | None, *, told: bool) -> dict[str, dict[str, Any]]:
    """The acting keys of each section, and under `top` those of the configuration itself."""
    top = read_keys("_internal_config", config, SECTIONS, told=told)
    tables = {
        "init_args": INIT_ARGS,
        "engine_args": ENGINE_ARGS,
        "peft_args": PEFT_ARGS,
        "trainer_args": TRAINER_ARGS,
        "tinker_args": TINKER_ARGS,
        "tinker_native_args": TINKER_ARGS,
    }
    read = {
        name: read_keys(_where(name), top.pop(name, None), keys, told=told) for name, keys in tables.items()
    }
    return {"top": top, **read}


def _check_gpus(config: Mapping[str, Any]) -> None:
    """What would be refused where the lists acted is refused here too: the program means another machine."""
    from art.remote.model_config import validate_dedicated_config

    init = {
        name: value for name, value in (config.get("init_args") or {}).items() if name != "fast_inference"
    }
    engine = {
        name: one for name, one in (config.get("engine_args") or {}).items() if name != "enable_sleep_mode"
    }
    validate_dedicated_config({**config, "init_args": init, "engine_args": engine})


def _lora(sections: Mapping[str, Mapping[str, Any]]) -> LoraSpec | None:
    whole = sections["init_args"].get("full_finetuning", False)
    if not isinstance(whole, bool):
        raise ConfigurationError(
            f"{_where('init_args')}['full_finetuning'] is {whole!r}; it is True or False"
        )
    given = {LORA[name]: value for name, value in sections["peft_args"].items() if name in LORA}
    if whole:
        if given:
            named = ", ".join(sorted(name for name in sections["peft_args"] if name in LORA))
            raise ConfigurationError(
                f"{_where('peft_args')} gives a LoRA's {named}, but full_finetuning trains all weights "
                "and has none; leave one of both out"
            )
        return None
    if not isinstance(given.get("targets", ""), str):
        given["targets"] = list(given["targets"])
    try:
        return LoraSpec(**given)
    except ValidationError as error:
        raise ConfigurationError(f"{_where('peft_args')} is refused: {first_flaw(error)}") from error


def _whole(sections: Mapping[str, Mapping[str, Any]], section: str, name: str, *, least: int) -> int:
    value = sections[section][name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(
            f"{_where(section)}[{name!r}] is {value!r}; it is a whole number of at least {least}"
        )
    return value


def _template(top: Mapping[str, Any]) -> str | None:
    text, path = top.get("chat_template"), top.get("chat_template_path")
    if text is not None and path is not None:
        raise ConfigurationError(
            "_internal_config gives chat_template and chat_template_path; they say the same, give one "
            "of the two"
        )
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"_internal_config['chat_template_path'] = {path!r}: {error}") from error
    if text is not None and not isinstance(text, str):
        raise ConfigurationError(f"_internal_config['chat_template'] is {text!r}; it is a template's text")
    return text


def _template_kwargs(top: Mapping[str, Any]) -> dict[str, Any]:
    given = top.get("chat_template_kwargs", {})
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigurationError(
            f"_internal_config['chat_template_kwargs'] is {given!r}; it is a dict of names and values"
        )
    return dict(given)


def _special_tokens(top: Mapping[str, Any]) -> Literal["text", "parse"]:
    given = top.get("special_tokens_in_text", "text")
    if given == "text":
        return "text"
    if given == "parse":
        return "parse"
    raise ConfigurationError(
        f"_internal_config['special_tokens_in_text'] is {given!r}; it is 'text' or 'parse'"
    )


def _warmup(given: Mapping[str, Any]) -> int:
    ratio, steps = given["warmup_ratio"], given.get("max_steps")
    if not ratio:
        return 0
    if not isinstance(ratio, int | float) or not 0 <= ratio < 1 or not steps or steps < 0:
        raise ConfigurationError(
            f"{_where('trainer_args')}['warmup_ratio'] = {ratio!r} with max_steps = {steps!r}: it is a "
            "share, below 1, of the run's max_steps. Give both, or warmup_steps."
        )
    warmup: int = math.ceil(ratio * steps)
    return warmup


def _where(section: str) -> str:
    return f"_internal_config[{section!r}]"
