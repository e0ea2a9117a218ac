"""The functions of `art.dev`: the full low-level configuration of a model and of its server.

The defaults are those that older programs saw; a backend of this package has its own
(`docs/internals/training-step.md`) and takes from a configuration what it was given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, cast

from art.client.options.dedicated_gpus import is_dedicated_mode
from art.compat.dev import InternalModelConfig, OpenAIServerConfig, ServerArgs
from art.errors import ConfigurationError
from art.tracking.folders import get_step_checkpoint_dir, get_step_from_dir

TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of every dense model with gated MLPs: Llama, Qwen, Mistral, Gemma."""

_DELTA_NET_MODULES = ("in_proj_qkv", "in_proj_z", "out_proj")
"""The large linear layers of the attention that Qwen 3.5 has in most of its layers, MoE or not. Of its
experts the shared one has the names of a gated MLP; the routed ones are no linear layers.
"""
_DELTA_NET_FAMILIES = re.compile(r"qwen3[._][56]", re.IGNORECASE)

# What takes values as they are; every other section is merged over its defaults.
_PASSED_ON = (
    "tinker_native_args",
    "trainer_gpu_ids",
    "inference_gpu_ids",
    "allow_unvalidated_arch",
)


def get_model_config(
    base_model: str, output_dir: str, config: InternalModelConfig | None
) -> InternalModelConfig:
    """`config` over the defaults of older releases. `model_name` is the newest checkpoint in `output_dir`, or
    the base model where there is none.

    The keys about chat templates are left out. These are the defaults that older programs saw; a backend of
    this package has its own (`docs/internals/training-step.md`) and takes from a config what it was given.
    """
    given: Mapping[str, Any] = config or {}
    step = get_step_from_dir(output_dir)
    peft = {
        "lora_alpha": 16,
        "r": 8,
        "random_state": 3407,
        "target_modules": _target_modules(base_model),
        "use_gradient_checkpointing": "unsloth",
        **given.get("peft_args", {}),
    }
    engine = {
        "allowed_local_media_path": "/tmp",
        "enable_sleep_mode": not is_dedicated_mode(given),
        "generation_config": "vllm",
        "model": base_model,
    }
    weights_mode = given.get("rollout_weights_mode", "lora")
    if weights_mode == "lora":
        engine["lora_target_modules"] = peft["target_modules"]
    sections: dict[str, Any] = {
        "init_args": {
            "load_in_4bit": True,
            "max_seq_length": 32768,
            "model_name": get_step_checkpoint_dir(output_dir, step) if step else base_model,
            **given.get("init_args", {}),
        },
        "engine_args": {**engine, **given.get("engine_args", {})},
        "peft_args": peft,
        "trainer_args": {**_trainer_defaults(output_dir), **given.get("trainer_args", {})},
        "rollout_weights_mode": weights_mode,
        "tinker_args": given.get("tinker_args"),
        **{name: given[name] for name in _PASSED_ON if name in given},
    }
    return cast("InternalModelConfig", sections)


def _target_modules(base_model: str) -> list[str]:
    more = _DELTA_NET_MODULES if _DELTA_NET_FAMILIES.search(base_model) else ()
    return [*TARGET_MODULES, *more]


def _trainer_defaults(output_dir: str) -> dict[str, Any]:
    return {
        "output_dir": output_dir,
        "disable_tqdm": True,
        "adam_beta1": 0.9,
        "adam_beta2": 0.99,
        "weight_decay": 0.1,
        "max_grad_norm": 0.1,
        "optim": "paged_adamw_8bit",
        "learning_rate": 5e-6,
        "lr_scheduler_type": "constant",
        "gradient_accumulation_steps": 1,
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "gradient_checkpointing": True,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
    }


def get_openai_server_config(
    model_name: str,
    base_model: str,
    log_file: str,
    lora_path: str | None = None,
    config: OpenAIServerConfig | None = None,
) -> OpenAIServerConfig:
    """The configuration of a server for `base_model`, and the adapter at `lora_path` as `model_name@step`.

    The step is the last part of `lora_path`; what `config` says wins. Raises ConfigurationError when that
    part is not a number.
    """
    given = config or OpenAIServerConfig()
    server: dict[str, Any] = {"api_key": "default"}
    if lora_path is not None:
        named = {"name": f"{model_name}@{_step_of(lora_path)}", "path": lora_path}
        server["lora_modules"] = [json.dumps(named)]
    server |= {
        "return_tokens_as_token_ids": True,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        **given.get("server_args", {}),
    }
    engine: dict[str, Any] = {
        "model": base_model,
        "served_model_name": base_model if lora_path is not None else model_name,
        "generation_config": "vllm",
        **given.get("engine_args", {}),
    }
    return OpenAIServerConfig(
        log_file=given.get("log_file", log_file),
        server_args=ServerArgs(**server),  # type: ignore[typeddict-item]
        engine_args=engine,
    )


def _step_of(lora_path: str) -> int:
    last = PurePath(lora_path).name
    if not last.isdigit():
        raise ConfigurationError(
            f"lora_path={lora_path!r}: the last part names the step, as in 'checkpoints/0007'; it is {last!r}"
        )
    return int(last)
