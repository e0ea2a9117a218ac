"""A call with a custom loss -> two calls that the trainer knows: one that scores its targets, and one whose
gradient is that of the loss, linear in their logprobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from art.batch.batch_types import FloatArray
from art.process.imports import import_lock
from art_extensions.tinker.custom_loss.loss_graph import CreateCustomLoss, CustomLossValue
from art_extensions.tinker.forward_backward import ForwardBackwardCall
from art_extensions.tinker.loss_functions import TARGETS, WEIGHTS
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.tensors import Numbers

_LINEAR = "cross_entropy"


def scoring_call(call: ForwardBackwardCall) -> ForwardBackwardCall:
    """The same datums, with a weight of 0 at each target."""
    return _linear(call, [np.zeros(datum.targets.shape, np.float32) for datum in call.data])


def gradient_call(call: ForwardBackwardCall, slopes: Sequence[FloatArray]) -> ForwardBackwardCall:
    """The same datums, with weights that give the logprobs these slopes: those of the loss."""
    return _linear(call, [-slope for slope in slopes])


def _linear(call: ForwardBackwardCall, weights: Sequence[FloatArray]) -> ForwardBackwardCall:
    data = tuple(
        replace(datum, columns={WEIGHTS: weight.astype(np.float32)}, inputs={})
        for datum, weight in zip(call.data, weights, strict=True)
    )
    return replace(call, loss_fn=_LINEAR, config={}, data=data)


def inputs_of(call: ForwardBackwardCall, asked: CreateCustomLoss) -> list[Mapping[str, Numbers]]:
    """The values that the loss reads, of each datum. Raises RequestError where one is missing, or of another
    rank than the loss declared.
    """
    found: list[Mapping[str, Numbers]] = []
    for number, datum in enumerate(call.data):
        values: dict[str, Numbers] = {}
        for at, wanted in enumerate(asked.inputs):
            name = wanted.name if at else TARGETS
            param = f"data[{number}].loss_fn_inputs.{name}"
            if name not in datum.inputs:
                raise refusal(f"loss {asked.name!r} needs {param}.", param=param)
            value = datum.inputs[name]
            if wanted.rank == 0 and value.size == 1:
                value = value.reshape(())
            if value.ndim != wanted.rank:
                raise refusal(
                    f"{param} has rank {value.ndim}, and loss {asked.name!r} declared {wanted.name} with "
                    f"rank {wanted.rank}.",
                    param=param,
                )
            values[wanted.name] = value
        found.append(values)
    return found


def compute_loss(
    asked: CreateCustomLoss, logprobs: Sequence[FloatArray], inputs: Sequence[Mapping[str, Numbers]]
) -> CustomLossValue:
    """The loss of these datums. Raises RequestError where it cannot be computed of them."""
    with import_lock:
        from art_extensions.tinker.custom_loss.loss_runner import run_loss
    return run_loss(asked, logprobs, inputs)
