"""Dictionaries of low-level settings, with the names that users' programs give them.

    model._internal_config = art.dev.InternalModelConfig(
        init_args=art.dev.InitArgs(max_seq_length=8192), peft_args=art.dev.PeftArgs(r=16)
    )

They are typed dictionaries: plain `dict`s that an editor can complete. What acts, and what is refused, is
decided where they are used: at `model.register` and `backend.train`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art.dev import train
from art.dev.engine import EngineArgs
from art.dev.get_model_config import get_model_config
from art.dev.model import (
    InitArgs,
    InternalModelConfig,
    PeftArgs,
    TinkerArgs,
    TinkerNativeArgs,
    TinkerTrainingClientArgs,
    TorchtuneArgs,
)
from art.dev.openai_server import OpenAIServerConfig, ServerArgs, get_openai_server_config
from art.dev.train import TrainSFTConfig
from art.dev.trainer import TrainerArgs
from art.dev.validate import is_dedicated_mode, validate_dedicated_config

if TYPE_CHECKING:
    from art.dev.train import TrainConfig

__all__ = [
    "EngineArgs",
    "InitArgs",
    "InternalModelConfig",
    "OpenAIServerConfig",
    "PeftArgs",
    "ServerArgs",
    "TinkerArgs",
    "TinkerNativeArgs",
    "TinkerTrainingClientArgs",
    "TorchtuneArgs",
    "TrainConfig",
    "TrainSFTConfig",
    "TrainerArgs",
    "get_model_config",
    "get_openai_server_config",
    "is_dedicated_mode",
    "validate_dedicated_config",
]


def __getattr__(name: str) -> Any:
    """`TrainConfig`, on first use."""
    if name == "TrainConfig":
        return train.TrainConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
