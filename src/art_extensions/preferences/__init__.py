"""Training on preferences: DPO and KTO, and reward models, each one step on the token tree of its pairs.

    result = await train_dpo(model, [{"prompt": "Greet me.", "chosen": "Hello!", "rejected": "No."}])

The names of `__all__` are loaded when they are first used: server and trainer import this package too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art_extensions.preferences.pairs import (
        LabelledReply,
        PreferencePair,
        pairs_of_groups,
        read_labelled,
        read_pairs,
    )
    from art_extensions.preferences.reward_model import RewardModel
    from art_extensions.preferences.training import train_dpo, train_kto, train_reward_model

__all__ = [
    "LabelledReply",
    "PreferencePair",
    "RewardModel",
    "pairs_of_groups",
    "read_labelled",
    "read_pairs",
    "train_dpo",
    "train_kto",
    "train_reward_model",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.startswith("train_"):
        return getattr(import_module(f"{__name__}.training"), name)
    return getattr(import_module(f"{__name__}.{'reward_model' if name == 'RewardModel' else 'pairs'}"), name)
