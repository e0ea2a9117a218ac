"""The loss entries of a step as tensors, split by rollouts into minibatches, epoch after epoch; a micro-batch
takes its rows.

Letters: E = loss entries, S = rollouts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from art.batch.batch_types import LossEntries
from art.training.losses.base import LossInputs
from art.wire.algorithm import Algorithm, RatioLevel, UpdatesSpec


@dataclass(kw_only=True, slots=True, eq=False)
class EntryColumns:
    """All entries of a batch. What a pass before the first update finds out is filled in by it."""

    sampled_E: torch.Tensor
    advantage_E: torch.Tensor
    weight_E: torch.Tensor
    sequence_E: torch.Tensor
    proximal_E: torch.Tensor | None = None
    """The logprobs under the trainer before the first update; None: the sampler's are used."""
    reference_E: torch.Tensor | None = None
    teacher_E: torch.Tensor | None = None
    value_E: torch.Tensor | None = None
    """The critic's before the first update."""
    return_E: torch.Tensor | None = None
    """What the critic is to predict."""
    kept_E: torch.Tensor | None = None
    """The entries that keep their policy term; None: all."""
    value_weight_E: torch.Tensor | None = None
    """Weights of the critic's errors; None: those of the policy's terms."""
    first_E: torch.Tensor | None = None
    """Whether an entry is the first of its turn; None: unknown."""

    def inputs(
        self, logprobs_E: torch.Tensor, entry_E: np.ndarray, *, normalizer: float, ratio: RatioLevel = "token"
    ) -> LossInputs:
        """The rows `entry_E`, whose logprobs are given."""
        rows_E = torch.as_tensor(entry_E, device=logprobs_E.device)
        proximal_E = self.sampled_E if self.proximal_E is None else self.proximal_E
        return LossInputs(
            logprobs_E=logprobs_E,
            sampled_logprobs_E=self.sampled_E[rows_E],
            proximal_logprobs_E=proximal_E[rows_E],
            reference_logprobs_E=None if self.reference_E is None else self.reference_E[rows_E],
            advantages_E=self.advantage_E[rows_E],
            weights_E=self.weight_E[rows_E],
            sequence_E=torch.unique(self.sequence_E[rows_E], return_inverse=True)[1],
            normalizer=normalizer,
            ratio=ratio,
            kept_E=None if self.kept_E is None else self.kept_E[rows_E],
        )

    def value_inputs(self, values_E: torch.Tensor, entry_E: np.ndarray, *, normalizer: float) -> LossInputs:
        """The rows `entry_E` as the critic's loss weighs them."""
        inputs = self.inputs(values_E, entry_E, normalizer=normalizer)
        if self.value_weight_E is None:
            return inputs
        rows_E = torch.as_tensor(entry_E, device=values_E.device)
        return dataclasses.replace(inputs, weights_E=self.value_weight_E[rows_E])


def make_columns(entries: LossEntries, *, dtype: torch.dtype, device: torch.device | str) -> EntryColumns:
    """The batch's arrays in the precision that losses are computed in: at least float32."""
    exact = torch.promote_types(dtype, torch.float32)

    def floats(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, dtype=exact, device=device)

    return EntryColumns(
        sampled_E=floats(entries.logprob_E),
        advantage_E=floats(entries.advantage_E),
        weight_E=floats(entries.weight_E),
        sequence_E=torch.as_tensor(entries.sequence_E, dtype=torch.long, device=device),
        teacher_E=None if entries.teacher_E is None else floats(entries.teacher_E),
        first_E=None if entries.place_E is None else torch.as_tensor(entries.place_E == 0, device=device),
    )


Ints = npt.NDArray[np.int64]


def minibatches(entries: LossEntries, updates: UpdatesSpec) -> list[Ints]:
    """Entry indices of each update, in order. Drawn from torch's generator, so a resumed run draws the same.

    Rollouts stay whole and are dealt out evenly; no more minibatches than rollouts are made.
    """
    everything = np.arange(len(entries), dtype=np.int64)
    rollouts, rollout_E = np.unique(entries.sequence_E, return_inverse=True)
    count = min(updates.minibatches, len(rollouts))
    if count <= 1:
        return [everything] * updates.epochs
    chosen = []
    for _ in range(updates.epochs):
        part_S = np.empty(len(rollouts), np.int64)
        part_S[torch.randperm(len(rollouts)).numpy()] = np.arange(len(rollouts)) % count
        chosen += [everything[part_S[rollout_E] == part] for part in range(count)]
    return chosen


def normalizer_of(entries: LossEntries, rows_E: Ints, normalizer: float, algorithm: Algorithm) -> float:
    """A minibatch's share of the batch's normalizer, so that its loss is the mean over itself.

    By its share of the rollouts' weights where the sum is divided by a constant, otherwise of the tokens'.
    """
    if len(rows_E) == len(entries):
        return normalizer
    if algorithm.aggregation.kind == "constant":
        rows_E = rows_E[np.unique(entries.sequence_E[rows_E], return_index=True)[1]]
        all_E = np.unique(entries.sequence_E, return_index=True)[1]
    else:
        all_E = np.arange(len(entries))
    total = float(entries.weight_E[all_E].sum(dtype=np.float64))
    share = float(entries.weight_E[rows_E].sum(dtype=np.float64)) / total if total else 0.0
    return normalizer * share or normalizer


def take_entries(entries: LossEntries, rows_E: Ints) -> LossEntries:
    """Returns some of the entries, in their order."""
    mine: dict[str, Any] = {}
    for field in dataclasses.fields(entries):
        column = getattr(entries, field.name)
        mine[field.name] = column[rows_E] if isinstance(column, np.ndarray) else column
    return LossEntries(**mine)
