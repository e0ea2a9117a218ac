"""What ranks add up: gradients, the columns of a pass over all entries, the record of tokens, metrics.

The loss of a step is a sum over its entries, divided by a number that is known before the first of them. So
the gradients of ranks are added, and there is nothing to average.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch

from art.training.ranks.group import RankGroup


def sum_gradients(ranks: RankGroup, parameters: Iterable[torch.nn.Parameter]) -> None:
    """Gives each parameter the sum of all ranks' gradients, in one collective for each dtype and device. None
    where no rank has one: an optimizer leaves such a parameter alone.
    """
    if ranks.world == 1:
        return
    alike: defaultdict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        alike[parameter.dtype, parameter.device].append(parameter)
    for mine in alike.values():
        flat = torch.cat([_flat_gradient(one) for one in mine] + [_presence(mine)])
        ranks.sum_in_place([flat])
        present = flat[-len(mine) :].tolist()
        pieces = flat[: -len(mine)].split([one.numel() for one in mine])
        for one, piece, times in zip(mine, pieces, present, strict=True):
            one.grad = piece.view_as(one) if times else None


def _flat_gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    gradient = parameter.grad
    return torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten()


@torch.no_grad()
def _presence(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    have = [float(one.grad is not None) for one in parameters]
    return torch.tensor(have, dtype=parameters[0].dtype, device=parameters[0].device)


def sum_columns(ranks: RankGroup, columns: Iterable[torch.Tensor | None]) -> None:
    """Adds up columns in place. Each entry has its value on one rank, and 0 on the others."""
    ranks.sum_in_place(column for column in columns if column is not None)


def sum_known(ranks: RankGroup, column_E: torch.Tensor) -> torch.Tensor:
    """Returns a column of all ranks' values; NaN or False is what a rank does not know."""
    if ranks.world == 1:
        return column_E
    known_E = column_E.to(torch.uint8) if column_E.dtype == torch.bool else column_E.nan_to_num(nan=0.0)
    known_E = known_E.clone()
    ranks.sum_in_place([known_E])
    return known_E.bool() if column_E.dtype == torch.bool else known_E
