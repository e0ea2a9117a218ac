"""Losses traced by torch.fx, as plain data in the form of Tinker's `CustomLossGraph`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.fx.node import _get_qualified_name


def traced(loss: Callable[..., Any], **ranks: int) -> dict[str, Any]:
    """The request for a loss whose inputs have these ranks; 1 where none is named."""
    nodes = []
    for node in torch.fx.symbolic_trace(loss).graph.nodes:
        target = node.target
        if node.op == "call_function":
            target = _get_qualified_name(target).replace("_operator.", "operator.")
        nodes.append(
            {
                "op": node.op,
                "name": node.name,
                "target": str(target),
                "args": [encoded(one) for one in node.args],
                "kwargs": {name: encoded(one) for name, one in node.kwargs.items()},
            }
        )
    names = list(inspect.signature(loss).parameters)
    return {
        "session_id": "s",
        "custom_loss_seq_id": 0,
        "name": loss.__name__,
        "inputs": [{"name": name, "rank": ranks.get(name, 1)} for name in names],
        "graph": {"format": 1, "nodes": nodes},
    }


def encoded(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"ref": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, list):
        return [encoded(one) for one in value]
    if isinstance(value, tuple):
        return {"tuple": [encoded(one) for one in value]}
    if isinstance(value, dict):
        return {"dict": {name: encoded(one) for name, one in value.items()}}
    if isinstance(value, slice):
        return {"slice": [encoded(one) for one in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    return value
