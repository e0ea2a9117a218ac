"""Lists of GPUs in `_internal_config`, as older programs give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art.errors import ConfigurationError


def is_dedicated_mode(config: Mapping[str, Any]) -> bool:
    """Returns whether training and sampling have GPUs of their own: both lists are given."""
    return "trainer_gpu_ids" in config and "inference_gpu_ids" in config


def validate_dedicated_config(config: Mapping[str, Any]) -> None:
    """Raise ConfigurationError (a ValueError) for GPU lists and weight modes that do not fit each other."""
    if ("trainer_gpu_ids" in config) != ("inference_gpu_ids" in config):
        raise ConfigurationError("trainer_gpu_ids and inference_gpu_ids must both be set or both unset")
    dedicated = is_dedicated_mode(config)
    mode = config.get("rollout_weights_mode", "lora")
    if mode not in ("lora", "merged"):
        raise ConfigurationError("rollout_weights_mode must be either 'lora' or 'merged'")
    if mode == "merged" and not dedicated:
        raise ConfigurationError(
            "rollout_weights_mode='merged' requires dedicated mode "
            "(set both trainer_gpu_ids and inference_gpu_ids)"
        )
    if "fast_inference" in (config.get("init_args") or {}):
        raise ConfigurationError(
            "fast_inference is no longer supported; ART always uses an external vLLM runtime"
        )
    sleeps = (config.get("engine_args") or {}).get("enable_sleep_mode")
    if not dedicated:
        if sleeps is False:
            raise ConfigurationError("enable_sleep_mode must be True where training and sampling share GPUs")
        return
    _validate_gpus(config["trainer_gpu_ids"], config["inference_gpu_ids"])
    if sleeps:
        raise ConfigurationError(
            "enable_sleep_mode is incompatible with dedicated mode "
            "(the inference GPU is not shared, so nothing has to sleep)"
        )


def _validate_gpus(training: list[int], sampling: list[int]) -> None:
    if not training:
        raise ConfigurationError("trainer_gpu_ids must be non-empty")
    if not sampling:
        raise ConfigurationError("inference_gpu_ids must be non-empty")
    if set(training) & set(sampling):
        raise ConfigurationError("trainer_gpu_ids and inference_gpu_ids must not overlap")
    if len(sampling) > 1:
        raise ConfigurationError(
            "Multi-GPU inference not yet supported; inference_gpu_ids must have exactly one GPU"
        )
    if training[0] != 0:
        raise ConfigurationError("trainer_gpu_ids must start at GPU 0 (training runs in-process)")
    if list(training) != list(range(len(training))):
        raise ConfigurationError("trainer_gpu_ids must be contiguous starting from 0 (e.g., [0], [0,1])")
