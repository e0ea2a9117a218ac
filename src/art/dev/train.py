"""The further keywords of a training step: `model.train(groups, _config=art.dev.TrainConfig(...))`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from art.backend import EarlierTrainOptions as TrainConfig

__all__ = ["TrainConfig", "TrainSFTConfig"]


class TrainSFTConfig(TypedDict, total=False):
    """The further keywords of a supervised step: there are none."""


def __getattr__(name: str) -> Any:
    """`TrainConfig`: the keywords of `train` where they are declared, whose types cost the import of
    pydantic.
    """
    if name == "TrainConfig":
        return import_module("art.backend").EarlierTrainOptions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
