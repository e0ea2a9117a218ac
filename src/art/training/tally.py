"""The metrics of one training step, added up over its micro-batches, and its record of every loss entry.

Letters: E = loss entries; those of a micro-batch where `rows_E` says which of the batch they are.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from art.training.losses.base import MAX_LOG_RATIO, LossInputs, LossOutput
from art.training.minibatches import Ints
from art.training.packing.runs import MicroBatch
from art.training.ranks.deal import Share
from art.training.ranks.group import RankGroup
from art.training.ranks.sums import sum_known
from art.wire.training import TOKEN_COLUMNS

Progress = Callable[[int, int], None]
"""Called with (forwarded tokens, all tokens of the step) after each micro-batch."""


FLAGS = ("clipped", "masked")
SHARES = frozenset({"loss/mismatch_dropped", "loss/clipped_share"})


Floats = npt.NDArray[np.float64]
TokenColumns = Mapping[str, npt.NDArray[np.generic]]
"""Arrays by name, one value for each loss entry: `art.wire.training.TOKEN_COLUMNS`."""


def sampler_agreement(logprob_E: Floats, sampled_E: Floats) -> dict[str, float]:
    """Returns how far trainer and sampler agree on tokens that the sampler drew: `w` = trainer's probability
    / sampler's of each.

    logprob_difference_*  mean, 99th percentile (linear between ranks) and largest |log w|
    mismatch_k1, _k2, _k3 means of -log w, of (log w)^2 / 2 and of w - 1 - log w: estimates of KL(sampler ||
                          trainer), of which the first is unbiased, and the third too and never negative
                          (Schulman, "Approximating KL Divergence", 2020)
    ess                   (sum of w)^2 / (E x sum of w^2): the effective sample size of the weights as a share
                          of the entries (Kong, "A note on importance sampling using standardized weights",
                          1992). 1: all weights are equal; 1 / E: one entry has all the weight

    `log w` is held within +-20 in k3 and ess, where it is the argument of `exp`.

    >>> half = sampler_agreement(np.log([0.5, 0.5]), np.log([0.5, 0.25]))  # w = 1 and 2
    >>> round(half["loss/ess"], 6), round(half["loss/mismatch_k3"], 6), round(float(1 - np.log(2)) / 2, 6)
    (0.9, 0.153426, 0.153426)
    """
    exact_E = logprob_E - sampled_E
    difference_E, log_E = np.abs(exact_E), np.clip(exact_E, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    weight_E = np.exp(log_E)
    return {
        "loss/logprob_difference_mean": float(difference_E.mean()),
        "loss/logprob_difference_p99": float(np.percentile(difference_E, 99)),
        "loss/logprob_difference_max": float(difference_E.max()),
        "loss/mismatch_k1": float(-exact_E.mean()),
        "loss/mismatch_k2": float(np.square(exact_E).mean() / 2),
        "loss/mismatch_k3": float((np.expm1(log_E) - log_E).mean()),
        "loss/ess": float(weight_E.sum() ** 2 / (len(weight_E) * np.square(weight_E).sum())),
    }


class TokenRecord:
    """The values that were computed of each loss entry when it was trained first, in the batch's order.

    The trainer's own logprobs are always kept, to be compared with the sampler's; the other columns where
    it records `all_columns`. A micro-batch that is tried again overwrites its entries.
    """

    def __init__(
        self,
        sampled_E: npt.NDArray[np.float32],
        like_E: torch.Tensor,
        updates: Sequence[Ints],
        *,
        all_columns: bool,
    ) -> None:
        """sampled_E: the sampler's logprobs, NaN where it has none. like_E: for device and precision.
        updates: the entries of each update of the first epoch.
        """
        self._sampled_E, self._updates, self._all_columns = sampled_E, updates, all_columns
        self._columns = {"logprob": torch.full_like(like_E, torch.nan)}
        if all_columns:
            self._columns |= {name: torch.full_like(like_E, torch.nan) for name in ("entropy", "ratio")}
            self._columns |= {name: torch.zeros_like(like_E, dtype=torch.bool) for name in FLAGS}

    def fill(self, update: int, rows_E: Ints, **columns: torch.Tensor | None) -> None:
        """Keep the values of some entries, unless an earlier update trained them. None: the step has none."""
        if update >= len(self._updates):
            return
        at_E = torch.as_tensor(rows_E, device=self._columns["logprob"].device)
        for name, value_E in columns.items():
            column_E = self._columns.get(name)
            if value_E is not None and column_E is not None:
                column_E[at_E] = value_E.detach().to(column_E.dtype)

    def forget(self, update: int) -> None:
        """An update begins again: another rank may compute its entries then."""
        for name, column_E in self._columns.items() if update < len(self._updates) else ():
            column_E[torch.as_tensor(self._updates[update], device=column_E.device)] = (
                False if name in FLAGS else torch.nan
            )

    def complete(self, ranks: RankGroup) -> None:
        """Take over what other ranks computed. Each entry was trained by one of them."""
        self._columns = {name: sum_known(ranks, column_E) for name, column_E in self._columns.items()}

    def agreement(self) -> dict[str, float]:
        """Returns `sampler_agreement` of the first update: later ones have moved away, which is no fault of
        the sampler's. Empty where it has no entry that was sampled.
        """
        rows_E = self._updates[0][~np.isnan(self._sampled_E[self._updates[0]])]
        if not len(rows_E):
            return {}
        logprob_E = self._columns["logprob"].double().cpu().numpy()[rows_E]
        return sampler_agreement(logprob_E, self._sampled_E[rows_E].astype(np.float64))

    def arrays(self, advantage_E: torch.Tensor) -> TokenColumns | None:
        """Returns all columns with the final advantages; None unless it records `all_columns`."""
        if not self._all_columns:
            return None
        columns = {**self._columns, "advantage": advantage_E}
        return {name: columns[name].cpu().numpy().astype(kind) for name, kind in TOKEN_COLUMNS.items()}


class Tally:
    """Sums and maxima over the micro-batches of all updates. Averages are over loss entries, so they do not
    depend on how the step was cut.
    """

    def __init__(self, updates: int, progress: Progress, record: TokenRecord) -> None:
        self._updates, self._progress, self._record = updates, progress, record
        self._started = time.perf_counter()
        self._shares: list[Share] = []
        self._norms: list[float] = []
        self._updates_made = 0
        self._own_tokens = self._own_before = 0
        self._totals, self._before = _Totals(), _Totals()

    @property
    def loss(self) -> float:
        """The loss of the current update."""
        return self._totals.shares["loss/train"] - self._before.shares["loss/train"]

    @property
    def all_dropped(self) -> bool:
        """Returns whether the mismatch masks left nothing of the update that is being made."""
        return self._totals.unmasked == self._before.unmasked

    def start(self, share: Share) -> None:
        """An update begins, or begins again: what was counted of it is forgotten."""
        again = len(self._shares) > len(self._norms)
        if again:
            self._shares.pop()
            self._own_tokens = self._own_before
            self._totals = copy.deepcopy(self._before)
            self._record.forget(len(self._norms))
        self._before, self._own_before = copy.deepcopy(self._totals), self._own_tokens
        self._shares.append(share)

    def add_up(self, ranks: RankGroup) -> None:
        """Counts what other ranks did in this update."""
        if ranks.world > 1:
            shares = ranks.gather(self._totals.since(self._before))
            self._totals = self._before.add(shares)

    def updated(self, grad_norm: float | None) -> None:
        """The update was made with a gradient of this norm; None: it was not, there was nothing to make."""
        self._norms.append(grad_norm or 0.0)
        self._updates_made += grad_norm is not None

    def add(self, micro: MicroBatch, entropies_E: torch.Tensor, *, pairs: int) -> None:
        """Count one micro-batch, and the attention pairs that were computed for it."""
        totals = self._totals
        totals.entropy += float(entropies_E.detach().sum())
        self._record.fill(len(self._norms), micro.entry_E, entropy=entropies_E)
        totals.entries += len(micro.entry_E)
        totals.tokens += len(micro.tokens_T)
        self._own_tokens += len(micro.tokens_T)
        totals.pairs += pairs

    def report_progress(self) -> None:
        """Reports how many of this rank's tokens of the step have been forwarded."""
        own = self._own_tokens
        self._progress(own, max(own, self._updates * self._shares[0].forwarded))

    @torch.no_grad()
    def add_loss(self, rows_E: Ints, inputs: LossInputs, output: LossOutput) -> None:
        """A share of an update's loss, and of the loss's metrics: that of the entries `rows_E`."""
        totals, ratio_E = self._totals, inputs.log_ratio_E.exp()
        self.add_metrics({"loss/train": output.loss, **output.metrics})
        totals.ratio += float(ratio_E.sum())
        totals.ratio_max = max(totals.ratio_max, float(ratio_E.max()))
        totals.unmasked += 1 if output.masked_E is None else int((~output.masked_E).sum())
        self._record.fill(
            len(self._norms),
            rows_E,
            logprob=inputs.logprobs_E,
            ratio=ratio_E,
            clipped=output.clipped_E,
            masked=output.masked_E,
        )

    def add_metrics(self, shares: Mapping[str, torch.Tensor | float]) -> None:
        for name, share in shares.items():
            self._totals.shares[name] += float(share.detach() if isinstance(share, torch.Tensor) else share)

    def metrics(self, learning_rate: float) -> dict[str, float]:
        packings = [share.packing for share in self._shares]
        first, totals = packings[0], self._totals
        count = max(1, totals.entries)
        micro_batches = sum(len(packing.micro_batches) for packing in packings)
        capacity = sum(packing.budget * len(packing.micro_batches) for packing in packings)
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
        found = self._record.agreement()
        if not found:
            return {}
        return {
            "loss/ratio_mean": self._totals.ratio / count,
            "loss/ratio_max": self._totals.ratio_max,
            **found,
        }


SUMMED = ("entropy", "ratio", "unmasked", "entries", "tokens", "pairs")
"""The names of the totals below that are added up over ranks."""


@dataclass(kw_only=True, slots=True)
class _Totals:
    """The totals so far."""

    shares: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    entropy: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    unmasked: int = 0
    """Entries that no mask dropped; where nothing masks, one for each share of the loss."""
    entries: int = 0
    tokens: int = 0
    pairs: int = 0

    def since(self, before: _Totals) -> dict[str, Any]:
        """Returns what came since then, for JSON; of the maximum, itself."""
        counted = {name: getattr(self, name) - getattr(before, name) for name in SUMMED}
        shares = {name: value - before.shares[name] for name, value in self.shares.items()}
        return {**counted, "ratio_max": self.ratio_max, "shares": shares}

    def add(self, counts: Sequence[Mapping[str, Any]]) -> _Totals:
        """Returns these totals with what ranks counted, added in the order of ranks."""
        total = copy.deepcopy(self)
        for one in counts:
            for name in SUMMED:
                setattr(total, name, getattr(total, name) + one[name])
            for name, value in one["shares"].items():
                total.shares[name] += value
            total.ratio_max = max(total.ratio_max, one["ratio_max"])
        return total
