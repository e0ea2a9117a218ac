"""Runs checked custom losses. No code of a request is run: each operation is looked up in a list.

A loss is computed datum by datum: of the logprobs of its targets and of its own inputs. What it keeps in
memory is counted before each operation, on tensors without storage.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from art.batch.batch_types import FloatArray
from art.errors import RequestError
from art_extensions.tinker.custom_loss.allowed_operations import ATTRIBUTES, FUNCTIONS
from art_extensions.tinker.custom_loss.loss_graph import (
    LARGEST_INTEGER,
    CreateCustomLoss,
    CustomLossValue,
    LossNode,
)
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.tensors import Numbers

MOST_ELEMENTS = 2**26
"""The numbers in all results of a datum together, which the backward pass keeps: 256 MB in float32."""
_MOST_POWER = 64


def run_loss(
    asked: CreateCustomLoss,
    logprobs: Sequence[FloatArray],
    inputs: Sequence[Mapping[str, Numbers]],
) -> CustomLossValue:
    """The sum of a checked loss over datums. `inputs`: the values of its names, of each datum.

    Raises RequestError (status 400), which names datum and node, where an operation does not fit its
    arguments, takes too much memory, or gives no scalar.
    """
    total, sums, slopes = 0.0, dict[str, float](), []
    for number, (logprob, given) in enumerate(zip(logprobs, inputs, strict=True)):
        leaf = torch.from_numpy(np.ascontiguousarray(logprob)).requires_grad_()
        values = {one.name: torch.from_numpy(np.array(given[one.name])) for one in asked.inputs[1:]}
        run = _Run(asked, f"data[{number}]", {"logprobs": leaf, **values})
        loss, metrics = run.output()
        (slope,) = torch.autograd.grad(loss, leaf, allow_unused=True) if loss.requires_grad else (None,)
        slopes.append(np.zeros_like(logprob) if slope is None else slope.numpy().astype(np.float32))
        total += _number(loss)
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + value
    metrics = {name: one / len(logprobs) if name.endswith(":mean") else one for name, one in sums.items()}
    if not math.isfinite(total) or not all(np.isfinite(slope).all() for slope in slopes):
        raise refusal(f"loss {asked.name!r} is {total!r}, or its gradient is not finite", param="loss_fn")
    return CustomLossValue(loss=total, metrics=metrics, slopes=tuple(slopes))


class _Run:
    """The values of a graph's nodes for one datum."""

    def __init__(self, asked: CreateCustomLoss, datum: str, inputs: Mapping[str, Any]) -> None:
        self._name, self._datum, self._left = asked.name, datum, MOST_ELEMENTS
        self._values: dict[str, Any] = {}
        for node in asked.graph.nodes:
            if node.op == "placeholder":
                self._values[node.name] = inputs[node.target]
            elif node.op == "output":
                self._output = self._decode(node.args[0])
            else:
                self._values[node.name] = self._call(node)

    def output(self) -> tuple[Any, dict[str, float]]:
        """The loss, and its metrics."""
        loss, metrics = self._output
        scalars = {"the loss": loss, **metrics}
        for name, value in scalars.items():
            if getattr(value, "ndim", 0) != 0 or isinstance(value, tuple | list | dict | str):
                raise self._refusal(f"{name} is no scalar, but has the shape {tuple(value.shape)}")
        if not hasattr(loss, "requires_grad"):
            raise self._refusal("the loss is no tensor")
        return loss, {name: _number(value) for name, value in metrics.items()}

    def _call(self, node: LossNode) -> Any:
        args = [self._decode(one) for one in node.args]
        kwargs = {name: self._decode(one) for name, one in node.kwargs.items()}
        function = _method(node.target) if node.op == "call_method" else find_function(node.target)
        try:
            self._count(node, function, args, kwargs)
            value = function(*args, **kwargs)
        except RequestError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise self._refusal(f"node {node.name!r} ({node.target}): {first}") from error
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise self._refusal(f"node {node.name!r} gives an integer beyond 2^53")
        return value

    def _count(
        self, node: LossNode, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        """Raises RequestError where the result is too large: before it is there."""
        module = node.target.rpartition(".")[0]
        if module in ("operator", "math") and node.target != "operator.getitem":
            self._check_operands(node, args)
        if not any(isinstance(one, torch.Tensor) for one in _leaves([args, kwargs])):
            return
        indices = _leaves(args[1:]) if node.target == "operator.getitem" else []
        if any(getattr(one, "dtype", None) is torch.bool for one in indices):
            if any(isinstance(one, torch.Tensor) and one.dtype != torch.bool for one in indices):
                raise self._refusal(f"node {node.name!r} selects by a mask and by indices at once")
            size = args[0].numel()  # at most: what a mask selects is not known before
        else:
            found = function(*_without_storage(args), **_without_storage(kwargs))
            size = sum(one.numel() for one in _leaves(found) if isinstance(one, torch.Tensor))
        self._left -= size
        if self._left < 0:
            raise self._refusal(f"node {node.name!r}: the loss needs more than {MOST_ELEMENTS} numbers")

    def _check_operands(self, node: LossNode, args: Sequence[Any]) -> None:
        """Raises RequestError for what grows without bound: lists, texts and powers of integers."""
        if not all(isinstance(one, torch.Tensor | int | float) for one in args):
            raise self._refusal(f"node {node.name!r} ({node.target}) takes tensors and numbers alone")
        if node.target == "operator.pow" and all(isinstance(one, int) for one in args):
            if abs(args[-1]) > _MOST_POWER:
                raise self._refusal(f"node {node.name!r} is a power of more than {_MOST_POWER}")

    def _decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._decode(one) for one in value]
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        if kind == "ref":
            return self._values[inner]
        if kind == "dict":
            return {name: self._decode(one) for name, one in inner.items()}
        if kind in ("tuple", "slice"):
            parts = [self._decode(one) for one in inner]
            return tuple(parts) if kind == "tuple" else slice(*parts)
        return _constant(kind, inner)

    def _refusal(self, problem: str) -> RequestError:
        return refusal(f"loss {self._name!r} of {self._datum}: {problem}", param=self._datum)


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _constant(kind: str, inner: Any) -> Any:
    if kind == "float":
        return float(inner)
    if kind == "ellipsis":
        return ...
    if kind == "dtype":
        return getattr(torch, inner)
    return {"device": torch.device("cpu"), "layout": torch.strided}.get(kind, torch.contiguous_format)


def _method(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, torch.Tensor):
            raise TypeError(f"{name} is called on a {type(self).__name__}, not on a tensor")
        return getattr(self, name)(*args, **kwargs)

    return call


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in _leaves(one)]
    if isinstance(value, slice):
        return _leaves([value.start, value.stop, value.step])
    return [value]


def _without_storage(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("meta")
    if isinstance(value, dict):
        return {name: _without_storage(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_storage(one) for one in value)
    return value


def find_function(name: str) -> Callable[..., Any]:
    """The function of one of `FUNCTIONS`. Raises KeyError for another name."""
    if name not in FUNCTIONS:
        raise KeyError(name)
    module, _, last = name.rpartition(".")
    if not module:
        return _read_attribute
    found = {
        "torch": torch,
        "torch.nn.functional": torch.nn.functional,
        "torch._C._nn": torch._C._nn,
        "operator": operator,
        "math": math,
    }[module]
    function: Callable[..., Any] = getattr(found, last)
    return function


def _read_attribute(value: Any, name: str) -> Any:
    if not isinstance(value, torch.Tensor) or name not in ATTRIBUTES:
        raise TypeError(f"{name!r} of a {type(value).__name__} is not read")
    return getattr(value, name)
