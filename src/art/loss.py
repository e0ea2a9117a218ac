"""The loss on arrays: names without code behind them."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt_names

INSTEAD = (
    "choose the loss by `loss_fn=` or `algorithm=` of `backend.train` (`art algorithms` lists them); "
    "`art.training.losses` has the trainer's own, which need torch"
)
NAMES = dict.fromkeys(("Loss", "loss_fn", "shift_tensor"), INSTEAD)


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)
