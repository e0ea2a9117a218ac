"""The distributions that the entries of a batch were drawn from, as the targets of a micro-batch.

Targets are merged by token, and two samples may have drawn one token from different distributions: then it
is a target twice.

Letters: E = loss entries, N = targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from art.training.pack import MicroBatch
from art.training.sampling import SamplingRows
from art.wire.training import SamplingSpec

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Distributions:
    """`specs[sampling_E[e]]` is the distribution that entry e of the batch was drawn from."""

    specs: Sequence[SamplingSpec]
    sampling_E: npt.NDArray[np.int32]

    @property
    def plain(self) -> bool:
        """Every entry was drawn from the model's own distribution."""
        return all(self.specs[number] == SamplingSpec() for number in np.unique(self.sampling_E).tolist())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Targets:
    """What is asked of the output layer."""

    predictor_N: Ints
    id_N: Ints
    entry_target_E: Ints
    sampling: SamplingRows | None


def targets_of(micro: MicroBatch, drawn: Distributions | None, *, device: torch.device | str) -> Targets:
    """The targets of a micro-batch, one for each token and distribution."""
    if drawn is None or drawn.plain:
        return Targets(
            predictor_N=micro.target_predictor_N,
            id_N=micro.target_id_N,
            entry_target_E=micro.entry_target_E,
            sampling=None,
        )
    pair_E = micro.entry_target_E * len(drawn.specs) + drawn.sampling_E[micro.entry_E]
    pair_N, entry_target_E = np.unique(pair_E, return_inverse=True)  # sorted, so predictors stay in order
    target_N, spec_N = np.divmod(pair_N, len(drawn.specs))
    specs = [drawn.specs[number] for number in spec_N.tolist()]

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return Targets(
        predictor_N=micro.target_predictor_N[target_N],
        id_N=micro.target_id_N[target_N],
        entry_target_E=entry_target_E,
        sampling=SamplingRows.make(
            temperature_N=column([spec.temperature for spec in specs]),
            top_k_N=torch.tensor([spec.top_k for spec in specs], device=device),
            top_p_N=column([spec.top_p for spec in specs]),
            min_p_N=column([spec.min_p for spec in specs]),
        ),
    )
