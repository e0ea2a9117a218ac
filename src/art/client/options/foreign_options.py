"""The options of other libraries in `_internal_config` and `_openai_client_config`, and what each does here.

The dictionaries of `art.dev` have their names. Some act; some are refused, because without them the result
would be another than the program asks for. All others have no effect, and one line of the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from art.compat.dev import (
    InitArgs,
    InternalModelConfig,
    OpenAIServerConfig,
    PeftArgs,
    ServerArgs,
    TinkerArgs,
)
from art.errors import ConfigurationError, did_you_mean
from art.wire.nested import MASK, SECRETS, HiddenKey, with_keys_hidden

_log = logging.getLogger(__name__)

NO_EFFECT = (
    "such options set up other libraries (vLLM, TRL, Unsloth, Tinker); the server's engine and trainer "
    "have options of their own, LocalBackend(server_options=...)"
)
"""The sentence that all options without effect share."""

_MISSPELT = 0.9
"""Likeness of a misspelt name. No two names of vLLM, transformers and TRL are so alike."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignOption:
    """One option that matters here.

    acts: it has the effect that `text` describes. refused: the result would differ from the option's meaning,
    so only `neutral` values pass, which have no effect; `text` names the alternative. None is always neutral.
    """

    effect: Literal["acts", "refused"]
    text: str
    neutral: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ForeignSection:
    """The options of one dictionary of `art.dev`. Those that are not in `options` have no effect.

    dictionary: None where the other library has the list of names, and any is taken.
    """

    dictionary: type | None
    options: Mapping[str, ForeignOption]

    @property
    def names(self) -> Collection[str]:
        """Returns the names that are known here: all, or those that matter where any is taken."""
        return self.dictionary.__annotations__ if self.dictionary else self.options


def acting_options(**texts: str) -> dict[str, ForeignOption]:
    """Returns options that have an effect, with its description."""
    return {name: ForeignOption(effect="acts", text=text) for name, text in texts.items()}


def refused_options(text: str, names: str, *, neutral: Sequence[Any] = ()) -> dict[str, ForeignOption]:
    """Returns options that are refused for one reason, except for neutral values."""
    return {
        name: ForeignOption(effect="refused", text=text, neutral=tuple(neutral)) for name in names.split()
    }


def read_options(
    where: str, options: Mapping[str, Any] | None, section: ForeignSection, *, log: bool = True
) -> dict[str, Any]:
    """Returns the values that have an effect. Raises ConfigurationError for unknown and refused options;
    `log`: one line names those without effect.

    where: how the section is called in messages, such as `_internal_config['peft_args']`.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigurationError(f"{where} is {options!r}; it is a dict, such as one of `art.dev`")
    acting, without_effect = {}, []
    for name, value in (options or {}).items():
        if name not in section.names:
            _refuse_unknown(where, name, section)
        option = section.options.get(name)
        if value is None or (option is not None and _is_neutral(value, option.neutral)):
            continue
        if option is None:
            if value is not False:
                without_effect.append(name)
        elif option.effect == "acts":
            acting[name] = value
        else:
            shown = HiddenKey(MASK) if name in SECRETS else with_keys_hidden(value)
            raise ConfigurationError(f"{where}[{name!r}] = {shown!r}: {option.text}")
    if without_effect and log:
        _log.warning("%s: no effect here: %s; %s", where, ", ".join(without_effect), NO_EFFECT)
    return acting


def _refuse_unknown(where: str, name: str, section: ForeignSection) -> None:
    """Raises ConfigurationError, of a section that takes any name only where it is a misspelt one."""
    if section.dictionary:
        known = f"`art.dev.{section.dictionary.__name__}` has"
        raise ConfigurationError(f"{where}[{name!r}]: no such key{meant_option(name, section.names, known)}")
    if guess := did_you_mean(name, section.names, likeness=_MISSPELT):
        raise ConfigurationError(f"{where}[{name!r}]: {guess}")


def meant_option(name: str, known: Collection[str], where: str = "docs/reference/options.md lists") -> str:
    """Returns `; did you mean 'x'? known: ...`, with the whole list only if it is short, or all there is."""
    guess = did_you_mean(name, known)
    hint = f"; {guess}" if guess else ""
    if len(known) > (15 if guess else 40):
        return f"{hint or ';'} {where} the {len(known)} known ones"
    return f"{hint or ';'} known: {', '.join(sorted(known))}"


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Returns whether a value is one of these. True and 1 are different values; a name of an enum is one."""
    value = value.value if isinstance(value, Enum) else value
    return any(type(value) is type(one) and value == one for one in neutral)


SECTIONS = ForeignSection(
    InternalModelConfig,
    {
        **acting_options(
            init_args="The base model's loading options, see below.",
            engine_args="The engine's options, see below.",
            peft_args="The adapter's shape, see below.",
            lora_config="The same by the names of `art.LoRAConfig`, in place of peft_args.",
            trainer_args="The optimizer, see below.",
            tinker_args="The options of Tinker's service, see below.",
            tinker_native_args="The same keys as tinker_args.",
            vllm_runtime=(
                "The vLLM server: `{'mode': 'managed'}`, or `{'mode': 'external', 'server_url': URL, "
                "'api_key': KEY}` for one that runs already; the first model of a LocalBackend decides."
            ),
            chat_template="A Jinja template that replaces the model's own chat template.",
            chat_template_path="A file on the client's machine with such a template.",
            chat_template_kwargs=(
                "The variables of the chat template, such as `enable_thinking`. Names that the model's "
                "format does not know raise an error. A request's own `chat_template_kwargs` override them."
            ),
            special_tokens_in_text=(
                "The reading of special tokens that a message spells: as text (`'text'`, the default), or as "
                "special tokens (`'parse'`)."
            ),
            tool_format=(
                "The format of tools where the chat template knows none: a generic one (`'auto'`, the "
                "default), or none (`'template'`), so that requests with tools are refused."
            ),
        ),
        **refused_options(
            "the template gets a message's content as text. Leave it out.",
            "chat_template_content_format",
            neutral=["auto", "string"],
        ),
        **refused_options(
            "it is not built: a request ends on the step that it began with, and the next one gets the "
            "newest. Leave it out.",
            "rollout_weight_update_mode",
            neutral=["step_lora"],
        ),
        **refused_options(
            "torchtune is not used. To train all weights use init_args={'full_finetuning': True}.",
            "torchtune_args",
            neutral=[{}],
        ),
    },
)

INIT_ARGS = ForeignSection(
    InitArgs,
    {
        **acting_options(
            max_seq_length=("The most tokens of prompt and completion together, if the model allows more."),
            full_finetuning="Trains all weights, without an adapter.",
            load_in_4bit=(
                "Loads the linear layers of the base model in 4 bits (NF4), in trainer and engine. "
                "Needs the extra `quantized` and the engine `builtin`."
            ),
            load_in_8bit="The same in 8 bits.",
            random_state="Seeds the adapter and the trainer, unless peft_args do.",
        ),
        **refused_options(
            "positions are those of the model's configuration. Change its config.json.", "rope_scaling"
        ),
        **refused_options(
            "code of a model's folder is never run. Use a model that transformers knows.",
            "trust_remote_code",
            neutral=[False],
        ),
        **refused_options(
            "the vocabulary is that of the base model. Resize it and save a model of your own.",
            "resize_model_vocab",
        ),
        **refused_options(
            "download that revision and give its folder as base_model.", "revision", neutral=["main"]
        ),
    },
)

TINKER_ARGS = ForeignSection(
    TinkerArgs,
    {
        **refused_options(
            "Tinker's service is no backend of this package. Use peft_args for the adapter's shape and seed.",
            "training_client_args",
            neutral=[{}],
        ),
    },
)
"""`tinker_args` and `tinker_native_args`."""

_NEW_ADAPTER = (
    "it is not implemented: an adapter is low-rank matrices on linear layers of the decoder. Leave it out."
)

PEFT_ARGS = ForeignSection(
    PeftArgs,
    {
        **acting_options(
            r="The adapter's rank. Default 16.",
            lora_alpha="Sets the adapter's scale to alpha / r. Default 32.",
            lora_dropout="The dropout before the adapter during training.",
            target_modules="The names of linear layers to adapt, 'all-linear' for all of them (the default), "
            "'experts' for the fused weights of experts.",
            use_rslora="Sets the scale to alpha / sqrt(r).",
            random_state="Seeds the adapter's initial weights and the trainer.",
            max_seq_length="The same as in init_args. The smallest value applies.",
        ),
        **refused_options("biases are not trained.", "bias", neutral=["none"]),
        **refused_options(
            _NEW_ADAPTER, "layers_to_transform layers_pattern modules_to_save", neutral=[[], ""]
        ),
        **refused_options(
            "A is drawn as PEFT does by default, B is zero. Leave it out.",
            "init_lora_weights",
            neutral=[True],
        ),
        **refused_options(_NEW_ADAPTER, "loftq_config", neutral=[{}]),
    },
)

_NOT_BUILT = "it is not implemented. Leave it out."
_NEVER = "code or settings of a model's folder that change its computation are not supported. Leave it out."

ENGINE_ARGS = ForeignSection(
    None,
    {
        **acting_options(
            max_model_len=("The most tokens of prompt and completion together, if the model allows more.")
        ),
        **refused_options(
            "the default of a request is the model's own distribution, temperature 1. Send "
            "temperature and top_p with each request.",
            "generation_config override_generation_config",
            neutral=["vllm", {}],
        ),
        **refused_options(_NEVER, "trust_remote_code disable_sliding_window", neutral=[False]),
        **refused_options(_NEVER, "rope_scaling rope_theta hf_overrides", neutral=[{}]),
        **refused_options(
            "download that revision and give its folder as base_model.",
            "revision code_revision tokenizer_revision",
            neutral=["main"],
        ),
        **refused_options(
            "a served model generates text. Leave it out.",
            "task runner convert",
            neutral=["auto", "generate", "none"],
        ),
        **refused_options(
            "use init_args={'load_in_4bit': True}, or give vLLM its own engine_args, "
            "LocalBackend(server_options={'engine': {'name': 'vllm', 'options': {'engine_args': {...}}}}).",
            "quantization",
        ),
        **refused_options("the tokenizer is that of the base model. Leave it out.", "tokenizer"),
        **refused_options(_NOT_BUILT, "override_pooler_config", neutral=[{}]),
        **refused_options(
            _NOT_BUILT, "enable_prompt_embeds enable_lora_bias enable_prompt_adapter", neutral=[False]
        ),
        **refused_options(_NOT_BUILT, "max_prompt_adapters max_prompt_adapter_token", neutral=[0, 1]),
        **refused_options(
            _NOT_BUILT, "logits_processor_pattern qlora_adapter_name_or_path long_lora_scaling_factors"
        ),
    },
)

SERVER_ARGS = ForeignSection(
    ServerArgs,
    {
        **acting_options(
            host="The address on which the server of a LocalBackend listens. Default 127.0.0.1.",
            port="The server's port. Default: a free port.",
        ),
        "api_key": ForeignOption(
            effect="acts", text="The server's key. Default: a random key.", neutral=("default",)
        ),
        **refused_options("set it in `_internal_config` of the model.", "chat_template"),
        **refused_options(
            "the template gets a message's content as text. Leave it out.",
            "chat_template_content_format",
            neutral=["auto", "string"],
        ),
        **refused_options(
            "give LocalBackend(server_options={'allow_origins': [...]}).",
            "allowed_origins",
            neutral=[["*"], []],
        ),
        **refused_options("code of a plugin is never run. Leave it out.", "tool_parser_plugin", neutral=[""]),
        **refused_options("a reply's role is 'assistant'.", "response_role", neutral=["assistant"]),
        **refused_options(
            "the server uses plain HTTP on this machine. Put a proxy in front of it.",
            "ssl_keyfile ssl_certfile ssl_ca_certs enable_ssl_refresh ssl_cert_reqs root_path",
            neutral=[False, 0],
        ),
        **refused_options(_NOT_BUILT, "middleware prompt_adapters", neutral=[[]]),
    },
)
"""`_openai_client_config["server_args"]`."""

_ADAMW = (
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_hf",
    "adamw_8bit",
    "adamw_bnb_8bit",
    "paged_adamw",
    "paged_adamw_8bit",
    "paged_adamw_32bit",
)
"""Optimizers that compute AdamW; how they store its state is the trainer's."""
_SAMPLING = "sampling is set in each request: pass it to `chat.completions.create`."
_TRAIN = "set it in backend.train, or in model.train(_config=...)"

TRAINER_ARGS = ForeignSection(
    None,
    {
        **acting_options(
            learning_rate="The learning rate of train(learning_rate=None).",
            adam_beta1="AdamW's first beta. Default 0.9.",
            adam_beta2="AdamW's second beta. Default 0.99.",
            adam_epsilon="AdamW's epsilon.",
            weight_decay="AdamW's weight decay. Default 0.",
            max_grad_norm="The gradient's norm is clipped at this value. Default 1.",
            lr_scheduler_type="The learning-rate schedule over the steps: constant, linear or cosine.",
            warmup_steps="The number of steps of linear warm-up.",
            warmup_ratio="The warm-up as a fraction of max_steps, which must be set.",
            max_steps="The number of steps of the whole run, at which the learning-rate schedule ends.",
            seed="Seeds the adapter and the trainer, unless peft_args or init_args do.",
        ),
        **refused_options("the optimizer is AdamW. Leave it out.", "adafactor", neutral=[False]),
        **refused_options("the optimizer is AdamW. Leave it out.", "optim", neutral=_ADAMW),
        **refused_options(
            "nothing is uploaded during training. Upload the folder `result.checkpoint_path`, which is in "
            "PEFT's format, or call `await backend.push_model(model, bucket=...)`.",
            "push_to_hub hub_always_push",
            neutral=[False],
        ),
        **refused_options(
            "set report_metrics=['wandb'] of the model, which also logs to files under its folder.",
            "report_to",
            neutral=["none", [], ["none"]],
        ),
        **refused_options(
            "set it as a field of art.TrainableModel.", "run_name project", neutral=["huggingface"]
        ),
        **refused_options(
            "your program runs the evaluation: gather validation rollouts and call `await model.log(groups, "
            "split='val')`.",
            "do_eval do_predict eval_on_start eval_strategy",
            neutral=[False, "no"],
        ),
        **refused_options(
            "each step keeps its checkpoint. Call `await model.delete_checkpoints()` to delete all but the "
            "newest and the best.",
            "save_total_limit",
        ),
        **refused_options(
            "one call of train is one pass over its groups. For more, set "
            "algorithm={'updates': {'epochs': ...}} in train.",
            "num_train_epochs",
            neutral=[1, 1.0],
        ),
        **refused_options(
            "it is not implemented: one process trains on one device. Leave it out.",
            "deepspeed fsdp",
            neutral=["", [], {}],
        ),
        **refused_options(_SAMPLING, "temperature top_p repetition_penalty", neutral=[1.0, 1]),
        **refused_options(_SAMPLING, "top_k min_p generation_kwargs", neutral=[0, 0.0, -1, {}]),
        **refused_options(_SAMPLING, "vllm_guided_decoding_regex"),
        **refused_options(
            "the length is set in each request: pass max_tokens to `chat.completions.create`. "
            "init_args={'max_seq_length': ...} limits prompt and completion together.",
            "max_completion_length max_prompt_length",
        ),
        **refused_options(
            "choose the engine of the server: LocalBackend(server_options={'engine': {'name': 'vllm'}}).",
            "use_vllm",
            neutral=[False],
        ),
        **refused_options(
            "give adam_params of backend.train, or leave it out.", "lr_scheduler_kwargs", neutral=[{}]
        ),
        **refused_options(
            _NOT_BUILT,
            "optim_target_modules neftune_noise_alpha model_init_kwargs",
            neutral=[{}],
        ),
        **refused_options(_NOT_BUILT, "label_smoothing_factor", neutral=[0.0, 0]),
        **refused_options(
            "the adapter's dropout is peft_args['lora_dropout'].", "disable_dropout", neutral=[False]
        ),
        **refused_options(
            "a model continues from its newest checkpoint automatically.",
            "resume_from_checkpoint load_best_model_at_end",
            neutral=[False],
        ),
        **refused_options(f"{_TRAIN}: kl_penalty_coef.", "beta", neutral=[0.0, 0]),
        **refused_options(
            f"{_TRAIN}: kl_penalty_sync_steps or kl_penalty_mixup.", "sync_ref_model", neutral=[False]
        ),
        **refused_options(f"{_TRAIN}: kl_penalty_mixup.", "ref_model_mixup_alpha"),
        **refused_options(f"{_TRAIN}: kl_penalty_sync_steps.", "ref_model_sync_steps"),
        **refused_options(
            f"{_TRAIN}, with the same name.", "epsilon epsilon_high importance_sampling_level scale_rewards"
        ),
        **refused_options(
            f"{_TRAIN}: algorithm={{'updates': {{'epochs': ...}}}}.", "num_iterations", neutral=[1]
        ),
        **refused_options(f"{_TRAIN}: loss_fn_config={{'delta': ...}}.", "delta"),
        **refused_options(f"{_TRAIN}: algorithm, whose table has the same names.", "loss_type"),
        **refused_options(
            f"{_TRAIN}: algorithm={{'truncated': 'drop'}}.", "mask_truncated_completions", neutral=[False]
        ),
        **refused_options("the reward is set in the trajectory. Weight its parts there.", "reward_weights"),
        **refused_options(f"{_TRAIN}: top_entropy.", "top_entropy_quantile", neutral=[1.0, 1]),
    },
)

SERVER_CONFIG = ForeignSection(
    OpenAIServerConfig,
    acting_options(
        server_args="The server's address, see below.", engine_args="The same as in `_internal_config`."
    ),
)
"""`_openai_client_config`."""
