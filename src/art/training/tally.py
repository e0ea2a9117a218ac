"""The metrics of one training step, added up over its micro-batches."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from art.training.attention.pieces import TreePlan
from art.training.losses.base import LossInputs, LossOutput
from art.training.packing.runs import MicroBatch, Packing

Progress = Callable[[int, int], None]
"""Called with (forwarded tokens, all tokens of the step) after each micro-batch."""


SHARES = frozenset({"loss/mismatch_dropped", "loss/clipped_share"})


class Tally:
    """Sums and maxima over the micro-batches of all updates. Averages are over loss entries, so they do not
    depend on how the step was cut.
    """

    def __init__(self, updates: int, progress: Progress) -> None:
        self._updates, self._progress = updates, progress
        self._started = time.perf_counter()
        self._packings: list[Packing] = []
        self._norms: list[float] = []
        self._updates_made = 0
        self._totals, self._before = _Totals(), _Totals()

    @property
    def loss(self) -> float:
        """The loss of the current update."""
        return self._totals.shares["loss/train"] - self._before.shares["loss/train"]

    @property
    def all_dropped(self) -> bool:
        """Returns whether the mismatch masks left nothing of the update that is being made."""
        return self._totals.kept == self._before.kept

    def start(self, packing: Packing) -> None:
        """An update begins, or begins again: what was counted of it is forgotten."""
        again = len(self._packings) > len(self._norms)
        if again:
            self._packings.pop()
            self._totals = copy.deepcopy(self._before)
        self._before = copy.deepcopy(self._totals)
        self._packings.append(packing)

    def updated(self, grad_norm: float | None) -> None:
        """The update was made with a gradient of this norm; None: it was not, there was nothing to make."""
        self._norms.append(grad_norm or 0.0)
        self._updates_made += grad_norm is not None

    @torch.no_grad()
    def add(
        self,
        micro: MicroBatch,
        plan: TreePlan,
        inputs: LossInputs,
        entropies_E: torch.Tensor,
        known_E: np.ndarray | None = None,
    ) -> None:
        """Count one micro-batch. `known_E`: which entries a sampler gave logprobs for; None: all."""
        totals = self._totals
        ratio_E = inputs.log_ratio_E.exp()
        difference_E = (inputs.logprobs_E - inputs.sampled_logprobs_E).abs()
        totals.entropy += float(entropies_E.sum())
        totals.ratio += float(ratio_E.sum())
        totals.ratio_max = max(totals.ratio_max, float(ratio_E.max()))
        if known_E is not None:
            difference_E = difference_E[torch.as_tensor(known_E, device=difference_E.device)]
        if not self._norms and len(difference_E):
            # Later updates have moved away: their difference is no fault of the sampler's.
            totals.difference += float(difference_E.sum())
            totals.difference_max = max(totals.difference_max, float(difference_E.max()))
            totals.compared += len(difference_E)
        totals.entries += len(micro.entry_E)
        totals.tokens += len(micro.tokens_T)
        totals.pairs += plan.pairs

    def report_progress(self) -> None:
        """Reports how many of the step's tokens have been forwarded."""
        totals = self._totals
        self._progress(totals.tokens, max(totals.tokens, self._updates * self._packings[0].forwarded))

    def add_loss(self, output: LossOutput) -> None:
        """A share of an update's loss, and of the loss's metrics."""
        self.add_metrics({"loss/train": output.loss, **output.metrics})
        self._totals.kept += 1 if output.kept is None else int(output.kept)

    def add_metrics(self, shares: Mapping[str, torch.Tensor | float]) -> None:
        for name, share in shares.items():
            self._totals.shares[name] += float(share.detach() if isinstance(share, torch.Tensor) else share)

    def metrics(self, learning_rate: float) -> dict[str, float]:
        first, totals = self._packings[0], self._totals
        count = max(1, totals.entries)
        micro_batches = sum(len(packing.micro_batches) for packing in self._packings)
        capacity = sum(packing.budget * len(packing.micro_batches) for packing in self._packings)
        return {
            **{name: self._mean(name, value) for name, value in totals.shares.items()},
            "loss/entropy": totals.entropy / count,
            "loss/grad_norm": sum(self._norms) / len(self._norms),
            "loss/learning_rate": learning_rate,
            **self._against_the_sampler(count),
            "data/step_trainer_tokens": float(totals.entries),
            "data/step_num_gradient_steps": float(self._updates_made),
            "data/forwarded_tokens": float(totals.tokens),
            "data/tree_lower_bound": float(first.lower_bound),
            "data/micro_batches": float(micro_batches),
            "data/attention_pairs_needed": float(first.pairs_needed),
            "data/attention_pairs_computed": float(totals.pairs),
            "data/fill": totals.tokens / max(1, capacity),
            "time/step_trainer_s": time.perf_counter() - self._started,
        }

    def _mean(self, name: str, total: float) -> float:
        """Returns the mean of the updates. A share is at most 1, whatever its parts were rounded to."""
        mean = total / self._updates
        return min(1.0, mean) if name in SHARES else mean

    def _against_the_sampler(self, count: int) -> dict[str, float]:
        """Returns the figures against the sampler; nothing if no entry was sampled."""
        totals = self._totals
        if not totals.compared:
            return {}
        return {
            "loss/ratio_mean": totals.ratio / count,
            "loss/ratio_max": totals.ratio_max,
            "loss/logprob_difference_mean": totals.difference / totals.compared,
            "loss/logprob_difference_max": totals.difference_max,
        }


@dataclass(kw_only=True, slots=True)
class _Totals:
    """The totals so far."""

    shares: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    entropy: float = 0.0
    ratio: float = 0.0
    difference: float = 0.0
    ratio_max: float = 0.0
    difference_max: float = 0.0
    kept: int = 0
    """Entries that no mask dropped; where nothing masks, one for each share of the loss."""
    entries: int = 0
    compared: int = 0
    """Entries of the first update."""
    tokens: int = 0
    pairs: int = 0
