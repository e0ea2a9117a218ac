"""The fixtures as the library's loss takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from art.batch.aggregation import weigh
from art.training.losses.base import LossInputs
from art.wire.algorithm import AggregationSpec
from crosscheck.fixtures import SIZE

Tensors = Mapping[str, torch.Tensor]
Parts = dict[str, torch.Tensor]


def inputs(x: Tensors, logprobs_E: torch.Tensor, aggregation: AggregationSpec, old: str) -> LossInputs:
    """The fixtures' sampled tokens as loss entries, weighed as the batch would weigh them."""
    mask_BL = x["mask_BL"].bool()
    rows_B = torch.arange(len(mask_BL))
    lengths = [int(length) for length in mask_BL.sum(1)]
    weighed = weigh(lengths, [row // SIZE for row in range(len(lengths))], aggregation)
    sequence_E = rows_B.repeat_interleave(torch.tensor(lengths))
    return LossInputs(
        logprobs_E=logprobs_E,
        sampled_logprobs_E=x["sampler_BL"][mask_BL],
        proximal_logprobs_E=x[old][mask_BL],
        reference_logprobs_E=x["reference_BL"][mask_BL],
        advantages_E=x["advantages_B"][sequence_E],
        weights_E=torch.from_numpy(weighed.weight_S)[sequence_E],
        sequence_E=sequence_E,
        normalizer=weighed.normalizer,
    )


def scored(
    x: Tensors,
    variable: str,
    aggregation: AggregationSpec,
    old: str,
    loss: Callable[[LossInputs], torch.Tensor],
) -> Parts:
    """A loss and its gradient with respect to a fixture, in the fixture's shape."""
    variable_BL = x[variable].clone().requires_grad_()
    value = loss(inputs(x, variable_BL[x["mask_BL"].bool()], aggregation, old))
    (gradient,) = torch.autograd.grad(value, variable_BL)
    return {"loss": value.detach().reshape(1), "gradient": gradient}
