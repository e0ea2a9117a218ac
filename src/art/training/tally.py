"""The metrics of one training step, added up over its micro-batches."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

import torch

from art.training.attention.plan import TreePlan
from art.training.losses.base import LossInputs, LossOutput
from art.training.pack import MicroBatch, Packing
from art.wire.training import TrainRequest

Progress = Callable[[int, int], None]
"""Called with (forwarded tokens, all tokens of the step) after each micro-batch."""


class Tally:
    """Sums and maxima. Averages are over loss entries, so they do not depend on how the step was cut."""

    def __init__(self, packing: Packing, progress: Progress) -> None:
        self._packing, self._progress = packing, progress
        self._started = time.perf_counter()
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._entries = self._tokens = self._pairs = 0
        self._ratio_max = self._difference_max = 0.0

    @property
    def loss(self) -> float:
        return self._sums["loss/train"]

    @torch.no_grad()
    def add(
        self,
        micro: MicroBatch,
        plan: TreePlan,
        inputs: LossInputs,
        entropies_E: torch.Tensor,
        output: LossOutput,
    ) -> None:
        """Count one micro-batch. Its loss and the loss's metrics are shares of batch means and simply add
        up.
        """
        ratio_E = inputs.log_ratio_E.exp()
        difference_E = (inputs.logprobs_E - inputs.sampled_logprobs_E).abs()
        self._sums["loss/train"] += float(output.loss)
        for name, share in output.metrics.items():
            self._sums[name] += float(share)
        self._sums["entropy"] += float(entropies_E.sum())
        self._sums["ratio"] += float(ratio_E.sum())
        self._sums["difference"] += float(difference_E.sum())
        self._ratio_max = max(self._ratio_max, float(ratio_E.max()))
        self._difference_max = max(self._difference_max, float(difference_E.max()))
        self._entries += len(micro.entry_E)
        self._tokens += len(micro.tokens_T)
        self._pairs += plan.pairs
        self._progress(self._tokens, self._packing.forwarded)

    def metrics(self, request: TrainRequest, grad_norm: float) -> dict[str, float]:
        packing, count = self._packing, max(1, self._entries)
        capacity = packing.budget * max(1, len(packing.micro_batches))
        means = {name: value for name, value in self._sums.items() if "/" in name}
        return {
            **means,
            "loss/entropy": self._sums["entropy"] / count,
            "loss/grad_norm": grad_norm,
            "loss/learning_rate": request.optimizer.learning_rate,
            "loss/ratio_mean": self._sums["ratio"] / count,
            "loss/ratio_max": self._ratio_max,
            "loss/logprob_difference_mean": self._sums["difference"] / count,
            "loss/logprob_difference_max": self._difference_max,
            "data/step_trainer_tokens": float(self._entries),
            "data/forwarded_tokens": float(self._tokens),
            "data/tree_lower_bound": float(packing.lower_bound),
            "data/micro_batches": float(len(packing.micro_batches)),
            "data/attention_pairs_needed": float(packing.pairs_needed),
            "data/attention_pairs_computed": float(self._pairs),
            "data/fill": self._tokens / capacity,
            "time/step_trainer_s": time.perf_counter() - self._started,
        }
