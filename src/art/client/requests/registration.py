"""What a model's registration says: from `_internal_config` and `_openai_client_config` to the request.

`_internal_config` gives the adapter's shape, the seed, the context's length, the chat template and the
optimizer; `_openai_client_config` says where the server of a backend listens. The keys are in
`art.client.options.foreign_options`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from art.client.http.connection import ServerConnection, named_path
from art.client.options.foreign_options import (
    ENGINE_ARGS,
    INIT_ARGS,
    PEFT_ARGS,
    SECTIONS,
    SERVER_ARGS,
    SERVER_CONFIG,
    TINKER_ARGS,
    TRAINER_ARGS,
    meant_option,
    read_options,
)
from art.errors import ARTError, ConfigurationError
from art.tracking.folders import stored_name
from art.types import peft_arguments
from art.wire.models import REGISTER_AND_RESUME, SHORTEST_KEY, ModelInfo, RegisterRequest
from art.wire.records import Bits, first_flaw, quantized_name
from art.wire.training import LoraSpec, OptimizerName, OptimizerSpec

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel


_SERVER_CONFIG = "_openai_client_config"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """The effective options of the server's configuration; None if not given."""

    host: str | None = None
    port: int | None = None
    api_key: str | None = field(default=None, repr=False)
    max_context: int | None = None

    @property
    def place(self) -> dict[str, Any]:
        """Returns the configured address of the server."""
        address = {"host": self.host, "port": self.port, "api_key": self.api_key}
        return {name: value for name, value in address.items() if value is not None}


def server_config(config: Mapping[str, Any] | None) -> ServerConfig:
    """Reads the server's configuration. Raises ConfigurationError for unknown keys, unsupported keys and
    wrong values.
    """
    sections = read_options(_SERVER_CONFIG, config, SERVER_CONFIG)
    server = read_options(f"{_SERVER_CONFIG}['server_args']", sections.get("server_args"), SERVER_ARGS)
    engine = read_options(f"{_SERVER_CONFIG}['engine_args']", sections.get("engine_args"), ENGINE_ARGS)
    host, port, key = server.get("host"), server.get("port"), server.get("api_key")
    if host is not None and not (isinstance(host, str) and host):
        raise _wrong_value("server_args", "host", host, "a name or an address")
    if port is not None and not (_is_whole(port) and 0 <= port <= 65535):
        raise _wrong_value("server_args", "port", port, "a number from 0 (any free one) to 65535")
    fit = isinstance(key, str) and len(key) >= SHORTEST_KEY and key.isascii() and key.isprintable()
    if key is not None and (not fit or " " in key):
        raise _wrong_value(
            "server_args", "api_key", "...", f"at least {SHORTEST_KEY} printable ASCII characters"
        )
    length = engine.get("max_model_len")
    if length is not None and not (_is_whole(length) and length >= 1):
        raise _wrong_value("engine_args", "max_model_len", length, "a whole number of at least 1")
    return ServerConfig(host=host, port=port or None, api_key=key, max_context=length)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong_value(section: str, name: str, value: Any, takes: str) -> ConfigurationError:
    return ConfigurationError(f"{_SERVER_CONFIG}[{section!r}][{name!r}] is {value!r}; it is {takes}")


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
ADAM_PARAMS = {"betas": "betas", "eps": "eps", "momentum": "momentum", **_BOTH}
"""Keys of train's adam_params -> fields of OptimizerSpec."""
_OF_MUON, _OF_ADAMW = ("momentum",), ("betas", "eps")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """The options of a configuration that have an effect at `register`."""

    lora: LoraSpec | None
    """None: all weights are trained."""
    bits: Bits = 16
    """The bits of each weight of the base model's linear layers; 16: not quantized."""
    seed: int = 0
    max_context: int | None = None
    """Tokens of prompt and completion; None: what the model allows."""
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    special_tokens_in_text: Literal["text", "parse"] = "text"
    tool_format: Literal["auto", "template"] = "auto"


def model_settings(config: Mapping[str, Any] | None, *, log: bool = True) -> ModelSettings:
    """Reads a model's configuration. `log`: one line per section names the keys that have no effect here.

    Raises ConfigurationError for an unknown key, with the closest known one, for one that cannot act, with
    what to use instead, and for a value that is out of range.
    """
    sections = _sections(config, log=log)
    _check_gpus(config or {})
    # What is wrong with the optimizer is refused now, not after an hour of rollouts.
    optimizer_spec(1.0, config, None)
    return ModelSettings(
        lora=_lora(sections),
        bits=_bits(sections["init_args"]),
        seed=next(
            (_whole_number(sections, *where, least=0) for where in SEEDS if where[1] in sections[where[0]]), 0
        ),
        max_context=min(
            (_whole_number(sections, *where, least=1) for where in LENGTHS if where[1] in sections[where[0]]),
            default=None,
        ),
        chat_template=_template(sections["top"]),
        chat_template_kwargs=_template_kwargs(sections["top"]),
        special_tokens_in_text=_special_tokens(sections["top"]),
        tool_format=_tool_format(sections["top"]),
    )


def optimizer_spec(
    learning_rate: float | None,
    config: Mapping[str, Any] | None,
    adam_params: Mapping[str, Any] | None,
    name: OptimizerName = "adamw",
) -> OptimizerSpec:
    """The optimizer's settings: `trainer_args` of the model, over them `adam_params` of the call.

    learning_rate: None takes that of trainer_args, and without one what the literature gives.
    """
    given = read_options(
        _config_path("trainer_args"), (config or {}).get("trainer_args"), TRAINER_ARGS, log=False
    )
    default = OptimizerSpec.model_fields["betas"].default
    fields: dict[str, Any] = {
        "name": name,
        "learning_rate": given.get("learning_rate") if learning_rate is None else learning_rate,
        "betas": (given.get("adam_beta1", default[0]), given.get("adam_beta2", default[1])),
        **{OPTIMIZER[name]: value for name, value in given.items() if name in OPTIMIZER},
    }
    if "warmup_ratio" in given:
        fields.setdefault("warmup_steps", _warmup(given))
    without_effect, instead = (_OF_ADAMW, _OF_MUON) if name == "muon" else (_OF_MUON, _OF_ADAMW)
    for key, value in (adam_params or {}).items():
        if key not in ADAM_PARAMS:
            raise ConfigurationError(
                f"adam_params[{key!r}] = {value!r}: no such key{meant_option(key, ADAM_PARAMS)}"
            )
        if key in without_effect:
            raise ConfigurationError(
                f"adam_params[{key!r}] has no effect with optimizer={name!r}: leave it out. This optimizer "
                f"has {' and '.join(instead)}"
            )
        fields[ADAM_PARAMS[key]] = value
    if fields.get("total_steps") == -1:  # transformers' word for no end
        del fields["total_steps"]
    schedule = str(getattr(fields.get("schedule", "constant"), "value", fields.get("schedule", "constant")))
    fields["schedule"] = SCHEDULES.get(schedule, schedule)
    try:
        return OptimizerSpec(**fields)
    except ValidationError as error:
        raise ConfigurationError(f"the optimizer's settings are refused: {first_flaw(error)}") from error


def _sections(config: Mapping[str, Any] | None, *, log: bool) -> dict[str, dict[str, Any]]:
    """The acting keys of each section, and under `top` those of the configuration itself."""
    if isinstance(config, Mapping) and (shape := config.get("lora_config")) is not None:
        adapter = peft_arguments(shape)
        if (config.get("peft_args") or adapter) != adapter:
            raise ConfigurationError("_internal_config: lora_config and peft_args differ: give one")
        config = {**config, "peft_args": adapter, "lora_config": None}
    top = read_options("_internal_config", config, SECTIONS, log=log)
    tables = {
        "init_args": INIT_ARGS,
        "engine_args": ENGINE_ARGS,
        "peft_args": PEFT_ARGS,
        "trainer_args": TRAINER_ARGS,
        "tinker_args": TINKER_ARGS,
        "tinker_native_args": TINKER_ARGS,
    }
    read = {
        name: read_options(_config_path(name), top.pop(name, None), keys, log=log)
        for name, keys in tables.items()
    }
    return {"top": top, **read}


def _check_gpus(config: Mapping[str, Any]) -> None:
    """Rejects lists of GPUs that could not take effect, because the program means another machine."""
    from art.client.options.dedicated_gpus import validate_dedicated_config

    init = {
        name: value for name, value in (config.get("init_args") or {}).items() if name != "fast_inference"
    }
    engine = {
        name: one for name, one in (config.get("engine_args") or {}).items() if name != "enable_sleep_mode"
    }
    validate_dedicated_config({**config, "init_args": init, "engine_args": engine})


def _lora(sections: Mapping[str, Mapping[str, Any]]) -> LoraSpec | None:
    full_finetuning = sections["init_args"].get("full_finetuning", False)
    if not isinstance(full_finetuning, bool):
        raise ConfigurationError(
            f"{_config_path('init_args')}['full_finetuning'] is {full_finetuning!r}; it is True or False"
        )
    given = {LORA[name]: value for name, value in sections["peft_args"].items() if name in LORA}
    if full_finetuning:
        if given:
            named = ", ".join(sorted(name for name in sections["peft_args"] if name in LORA))
            raise ConfigurationError(
                f"{_config_path('peft_args')} gives a LoRA's {named}, but full_finetuning trains all weights "
                "and has none; leave one of both out"
            )
        return None
    if not isinstance(given.get("targets", ""), str):
        given["targets"] = list(given["targets"])
    try:
        return LoraSpec(**given)
    except ValidationError as error:
        raise ConfigurationError(f"{_config_path('peft_args')} is refused: {first_flaw(error)}") from error


_BITS: Mapping[str, Bits] = {"load_in_4bit": 4, "load_in_8bit": 8}


def _bits(init_args: Mapping[str, Any]) -> Bits:
    given = {name: init_args[name] for name in _BITS if name in init_args}
    for name, value in given.items():
        if not isinstance(value, bool):
            raise ConfigurationError(
                f"{_config_path('init_args')}[{name!r}] is {value!r}; it is True or False"
            )
    wanted = [name for name, value in given.items() if value]
    if len(wanted) == 2 or (wanted and init_args.get("full_finetuning")):
        other = "full_finetuning" if len(wanted) < 2 else wanted[1]
        raise ConfigurationError(
            f"{_config_path('init_args')} gives {wanted[0]} and {other}, which exclude each other: a base "
            "model has 4 or 8 bits, and the weights of a quantized one are not trained; leave one of both out"
        )
    return _BITS[wanted[0]] if wanted else 16


def _whole_number(sections: Mapping[str, Mapping[str, Any]], section: str, name: str, *, least: int) -> int:
    value = sections[section][name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(
            f"{_config_path(section)}[{name!r}] is {value!r}; it is a whole number of at least {least}"
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


def _tool_format(top: Mapping[str, Any]) -> Literal["auto", "template"]:
    given = top.get("tool_format", "auto")
    if given == "auto":
        return "auto"
    if given == "template":
        return "template"
    raise ConfigurationError(f"_internal_config['tool_format'] is {given!r}; it is 'auto' or 'template'")


def _warmup(trainer_args: Mapping[str, Any]) -> int:
    ratio, steps = trainer_args["warmup_ratio"], trainer_args.get("max_steps")
    if not ratio:
        return 0
    if not isinstance(ratio, int | float) or not 0 <= ratio < 1 or not steps or steps < 0:
        raise ConfigurationError(
            f"{_config_path('trainer_args')}['warmup_ratio'] = {ratio!r} with max_steps = {steps!r}: it is a "
            "share, below 1, of the run's max_steps. Give both, or warmup_steps."
        )
    warmup: int = math.ceil(ratio * steps)
    return warmup


def _config_path(section: str) -> str:
    return f"_internal_config[{section!r}]"


REGISTER_S = 1800.0
"""A large base model is loaded on registration."""


def register_request(model: AnyTrainableModel, server: ServerConfig) -> RegisterRequest:
    """Builds the registration request, with the smaller of two given lengths. Raises ConfigurationError."""
    settings = model_settings(model._internal_config)
    lengths = [length for length in (settings.max_context, server.max_context) if length is not None]
    return RegisterRequest(
        project=model.project,
        name=stored_name(model),
        base_model=quantized_name(model.base_model, settings.bits),
        lora=settings.lora,
        seed=settings.seed,
        max_context=min(lengths, default=None),
        chat_template=settings.chat_template,
        chat_template_kwargs=settings.chat_template_kwargs,
        special_tokens_in_text=settings.special_tokens_in_text,
        tool_format=settings.tool_format,
    )


PHASE_S = 0.25
"""Seconds between two looks at how far the server is."""


async def register_model(
    connection: ServerConnection,
    request: RegisterRequest,
    begin_phase: Callable[[str], None],
    *,
    resume: bool = True,
) -> ModelInfo:
    """Registers a model and waits until it is served. begin_phase: called with what the server does
    meanwhile. resume: training jobs of the model that an earlier server left unfinished go on.

    Raises what `ServerConnection.call` raises.
    """
    watching = asyncio.create_task(_watch_phases(connection, request, begin_phase))
    try:
        route = REGISTER_AND_RESUME if resume else "/art/models"
        info = await connection.call("POST", route, ModelInfo, request, deadline_s=REGISTER_S)
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    for phase in info.phases:  # those that were too short to be seen
        begin_phase(phase)
    return info


async def _watch_phases(
    connection: ServerConnection, request: RegisterRequest, begin_phase: Callable[[str], None]
) -> None:
    path = named_path(request.project, request.name)
    while True:
        await asyncio.sleep(PHASE_S)
        try:
            info = await connection.call("GET", path, ModelInfo, deadline_s=REGISTER_S)
        except (ARTError, ValidationError):
            continue  # it is not known yet, or what is wrong is said by the registration itself
        for phase in info.phases:
            begin_phase(phase)
