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

from art.training.constrained import Masks
from art.training.pack import MicroBatch
from art.training.sampling import Bias, SamplingRows, Shapes
from art.wire.training import SamplingSpec

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Distributions:
    """`specs[sampling_E[e]]` is the distribution that entry e of the batch was drawn from."""

    specs: Sequence[SamplingSpec]
    sampling_E: npt.NDArray[np.int32]
    masks: Masks | None = None
    """Among which ids constrained entries were drawn."""

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
    mask_E = np.full(len(micro.entry_E), -1) if drawn.masks is None else drawn.masks.mask_E[micro.entry_E]
    masks = mask_E.max(initial=-1) + 2
    spec_E = drawn.sampling_E[micro.entry_E]
    key_E = (micro.entry_target_E * len(drawn.specs) + spec_E) * masks + mask_E + 1
    key_N, entry_target_E = np.unique(key_E, return_inverse=True)  # sorted, so predictors stay in order
    pair_N, mask_N = np.divmod(key_N, masks)
    target_N, spec_N = np.divmod(pair_N, len(drawn.specs))
    return Targets(
        predictor_N=micro.target_predictor_N[target_N],
        id_N=micro.target_id_N[target_N],
        entry_target_E=entry_target_E,
        sampling=_rows(drawn, spec_N, mask_N - 1, device),
    )


def _rows(drawn: Distributions, spec_N: Ints, mask_N: Ints, device: torch.device | str) -> SamplingRows:
    specs = [drawn.specs[number] for number in spec_N.tolist()]

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return SamplingRows.make(
        temperature_N=column([spec.temperature for spec in specs]),
        top_k_N=torch.tensor([spec.top_k for spec in specs], device=device),
        top_p_N=column([spec.top_p for spec in specs]),
        min_p_N=column([spec.min_p for spec in specs]),
        shapes=_shapes(drawn, spec_N, mask_N, device),
    )


def _shapes(drawn: Distributions, spec_N: Ints, mask_N: Ints, device: torch.device | str) -> Shapes | None:
    """Biases and masks of the targets; only those that they use go to the device."""
    used = np.unique(spec_N)
    biased = [number for number in used.tolist() if drawn.specs[number].logit_bias]
    if not biased and not (mask_N >= 0).any():
        return None
    numbers = np.full(len(drawn.specs), -1)
    numbers[biased] = np.arange(len(biased))
    kinds, kind_N = np.unique(mask_N, return_inverse=True)
    bits = np.zeros((1, 1), np.uint8) if drawn.masks is None else drawn.masks.bits_KB[kinds]
    return Shapes(
        bias_N=torch.as_tensor(numbers[spec_N], device=device),
        mask_N=torch.as_tensor(np.where(mask_N >= 0, kind_N, -1), device=device),
        biases=tuple(_bias(drawn.specs[number], device) for number in biased),
        bits_KB=torch.as_tensor(bits, device=device),
    )


def _bias(spec: SamplingSpec, device: torch.device | str) -> Bias:
    ids, values = zip(*spec.logit_bias, strict=True)
    return Bias(
        ids=torch.tensor(ids, device=device), values=torch.tensor(values, dtype=torch.float32, device=device)
    )
