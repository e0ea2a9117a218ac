"""The entries of each optimizer step: a batch's rollouts split into minibatches, epoch after epoch.

Letters: E = loss entries, S = rollouts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from art.samples.types import LossEntries
from art.wire.algorithm import Algorithm, UpdatesSpec

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

    By its share of the rollouts where the sum is divided by a constant, otherwise of the weights.
    """
    if len(rows_E) == len(entries):
        return normalizer
    if algorithm.aggregation.kind == "constant":
        share = len(np.unique(entries.sequence_E[rows_E])) / len(np.unique(entries.sequence_E))
    else:
        total = float(entries.weight_E.sum(dtype=np.float64))
        share = float(entries.weight_E[rows_E].sum(dtype=np.float64)) / total if total else 0.0
    return normalizer * share or normalizer


def take(entries: LossEntries, rows_E: Ints) -> LossEntries:
    """Some of the entries, in their order."""
    mine: dict[str, Any] = {}
    for field in dataclasses.fields(entries):
        column = getattr(entries, field.name)
        mine[field.name] = column[rows_E] if isinstance(column, np.ndarray) else column
    return LossEntries(**mine)
