"""A step that fails after its first update leaves nothing behind."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from art.training.critic import Critic


@contextmanager
def unchanged_on_failure(
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    critic: Critic | None,
    *,
    several: bool,
) -> Iterator[None]:
    """Put weights and moments back when the block raises. Without `several` updates or a critic nothing needs
    to be kept: an update fails before it moves anything.
    """
    if not several and critic is None:
        yield
        return
    weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    moments = copy.deepcopy(optimizer.state_dict())
    values = None if critic is None else critic.state()
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])
        optimizer.load_state_dict(moments)
        if critic is not None and values is not None:
            critic.load(values)
        raise


@contextmanager
def fresh_moments(optimizer: torch.optim.Optimizer, *, when: bool) -> Iterator[None]:
    """Where `when` is true, the block begins without moments; those from before are back when it raises, or
    made no update.
    """
    if not when:
        yield
        return
    kept = optimizer.state
    optimizer.state = defaultdict(dict)
    try:
        yield
    except BaseException:
        optimizer.state = kept
        raise
    if not optimizer.state:
        optimizer.state = kept
