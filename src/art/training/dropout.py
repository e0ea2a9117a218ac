"""Dropout belongs to the passes that are trained: a policy that is asked for logprobs answers without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Inside, no dropout layer of `model` acts or draws; afterwards those that acted act again."""
    live = [one for one in model.modules() if isinstance(one, torch.nn.Dropout) and one.training]
    for one in live:
        one.eval()
    try:
        yield
    finally:
        for one in live:
            one.train()
