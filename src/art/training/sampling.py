"""The distributions that were truly sampled from: logits biased, penalised, masked, tempered and truncated.

As `art.engine.builtin` does it: biased, penalised and masked logits / temperature, then top_k, then top_p,
then min_p, renormalised. Which tokens are kept is a constant, so no gradient flows through it. Where the
sampler recorded them, they are those: a policy that has moved would keep others. Where it did not, they are
computed anew, and the target is always among them. Parameters that are 0 (top_k, min_p), 1 (temperature,
top_p) or greedy (temperature 0, whose logprob is the model's own) change nothing.

Letters: N = targets, M = targets whose distribution is processed, V = vocabulary, K = masks of B bytes each,
or recorded sets, J = their ids, or those of a prompt and its completion, R = targets of one completion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from art.engine.constraints import unpack_mask

NUCLEUS = 1024
"""How many of the most probable tokens are looked at first for top_p."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TargetBias:
    """The biases of some ids' logits."""

    ids: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PenalisedText:
    """A prompt and its completion, and how ids in it are penalised (see `art.wire.sampling`)."""

    ids_J: torch.Tensor
    prompt: int
    """How many of them are the prompt's."""
    frequency: float
    presence: float
    repetition: float

    def counts(self, place_R: torch.Tensor, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns how often the completion has each id before so many of its tokens [R, V], and which ids it
        or the prompt has.
        """
        said_J = self.ids_J[self.prompt :]
        before_RJ = torch.arange(len(said_J), device=said_J.device) < place_R[:, None]
        count_RV = torch.zeros(len(place_R), vocabulary, device=said_J.device)
        count_RV.scatter_add_(1, said_J.expand(len(place_R), -1), before_RJ.to(count_RV.dtype))
        known_RV = count_RV > 0
        known_RV[:, self.ids_J[: self.prompt]] = True
        return count_RV, known_RV


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shapes:
    """Biases, penalties and masks of targets; -1 is none."""

    bias_N: torch.Tensor
    mask_N: torch.Tensor
    biases: tuple[TargetBias, ...]
    bits_KB: torch.Tensor
    """Bytes: one bit for each id that was allowed."""
    text_N: torch.Tensor
    """Number of the text in `texts` whose ids are penalised."""
    place_N: torch.Tensor
    """How many tokens of its completion are before the target."""
    texts: tuple[PenalisedText, ...] = ()

    @property
    def shaped_N(self) -> torch.Tensor:
        return (self.bias_N >= 0) | (self.mask_N >= 0) | (self.text_N >= 0)

    def at_targets(self, where: torch.Tensor | slice) -> Shapes:
        """Returns the shapes of some targets."""
        return replace(
            self,
            bias_N=self.bias_N[where],
            mask_N=self.mask_N[where],
            text_N=self.text_N[where],
            place_N=self.place_N[where],
        )

    def apply(self, logits_NV: torch.Tensor) -> torch.Tensor:
        """Biased and penalised logits, -inf where an id was not allowed; `logits_NV` stays as it is."""
        logits_NV = self._biased(logits_NV)
        for text, rows_R in self._penalised():
            scores_RV = logits_NV[rows_R]
            count_RV, known_RV = text.counts(self.place_N[rows_R], logits_NV.shape[1])
            repeated_RV = torch.where(scores_RV > 0, scores_RV / text.repetition, scores_RV * text.repetition)
            scores_RV = torch.where(known_RV, repeated_RV, scores_RV)
            scores_RV = scores_RV - text.frequency * count_RV - text.presence * (count_RV > 0)
            logits_NV[rows_R] = scores_RV.to(logits_NV.dtype)
        masked_M = (self.mask_N >= 0).nonzero()[:, 0]
        if len(masked_M):
            shift_8 = torch.arange(8, dtype=torch.uint8, device=logits_NV.device)
            allowed_MV = unpack_mask(self.bits_KB[self.mask_N[masked_M]], shift_8, logits_NV.shape[1])
            logits_NV[masked_M] = logits_NV[masked_M].masked_fill(~allowed_MV, float("-inf"))
        return logits_NV

    def scale_slopes(self, slope_NV: torch.Tensor, logits_NV: torch.Tensor) -> None:
        """Turns gradients of the shaped logits into those of the logits: a repetition penalty scales them."""
        logits_NV = self._biased(logits_NV) if self.texts else logits_NV
        for text, rows_R in self._penalised():
            if text.repetition != 1:
                _, known_RV = text.counts(self.place_N[rows_R], logits_NV.shape[1])
                scale_RV = torch.where(logits_NV[rows_R] > 0, 1 / text.repetition, text.repetition)
                slope_NV[rows_R] *= torch.where(known_RV, scale_RV, 1.0).to(slope_NV.dtype)

    def _biased(self, logits_NV: torch.Tensor) -> torch.Tensor:
        logits_NV = logits_NV.clone()
        for number, bias in enumerate(self.biases):
            rows_M = (self.bias_N == number).nonzero()
            logits_NV[rows_M, bias.ids] += bias.values.to(logits_NV.dtype)
        return logits_NV

    def _penalised(self) -> Iterator[tuple[PenalisedText, torch.Tensor]]:
        """Each text that some targets continue, and which those are [R]."""
        for number in self.text_N.unique().tolist():
            if number >= 0:
                yield self.texts[number], (self.text_N == number).nonzero()[:, 0]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recorded:
    """The ids among which targets were drawn, as the sampler told."""

    set_N: torch.Tensor
    """Number of the target's set; -1: it is computed."""
    start_K: torch.Tensor
    size_K: torch.Tensor
    id_J: torch.Tensor

    def at_targets(self, where: torch.Tensor | slice) -> Recorded:
        """Returns the recorded sets of some targets."""
        return replace(self, set_N=self.set_N[where])

    def replace_in(self, mask_MV: torch.Tensor) -> None:
        """Write the recorded sets over what was computed."""
        row_M = (self.set_N >= 0).nonzero()[:, 0]
        set_M = self.set_N[row_M]
        size_M = self.size_K[set_M]
        skipped_M = self.start_K[set_M] - (size_M.cumsum(0) - size_M)
        id_J = self.id_J[
            torch.arange(int(size_M.sum()), device=size_M.device) + skipped_M.repeat_interleave(size_M)
        ]
        mask_MV[row_M] = False
        mask_MV[row_M.repeat_interleave(size_M), id_J] = True


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SamplingRows:
    """The sampling parameters of each target of a micro-batch, in the order of the targets.

    Two targets of one predictor may differ.
    """

    temperature_N: torch.Tensor
    """Floating."""
    top_k_N: torch.Tensor
    """Integers; 0: all."""
    top_p_N: torch.Tensor
    min_p_N: torch.Tensor
    shapes: Shapes | None = None
    recorded: Recorded | None = None

    @classmethod
    def make(
        cls,
        *,
        temperature_N: torch.Tensor,
        top_k_N: torch.Tensor | None = None,
        top_p_N: torch.Tensor | None = None,
        min_p_N: torch.Tensor | None = None,
        shapes: Shapes | None = None,
        recorded: Recorded | None = None,
    ) -> SamplingRows:
        """Builds the rows. Omitted parameters have no effect."""
        ones, zeros = torch.ones_like(temperature_N), torch.zeros_like(temperature_N)
        return cls(
            temperature_N=temperature_N,
            top_k_N=zeros.long() if top_k_N is None else top_k_N.long(),
            top_p_N=ones if top_p_N is None else top_p_N,
            min_p_N=zeros if min_p_N is None else min_p_N,
            shapes=shapes,
            recorded=recorded,
        )

    @property
    def processed_N(self) -> torch.Tensor:
        """The targets with another distribution than the model's own."""
        changed_N = (self.temperature_N != 1) | (self.top_k_N > 0) | (self.top_p_N < 1) | (self.min_p_N > 0)
        if self.shapes is not None:
            changed_N = changed_N | self.shapes.shaped_N
        if self.recorded is not None:
            changed_N = changed_N | (self.recorded.set_N >= 0)
        return changed_N & (self.temperature_N != 0)

    def at_targets(self, where: torch.Tensor | slice) -> SamplingRows:
        """Returns the rows of some targets."""
        return SamplingRows(
            temperature_N=self.temperature_N[where],
            top_k_N=self.top_k_N[where],
            top_p_N=self.top_p_N[where],
            min_p_N=self.min_p_N[where],
            shapes=None if self.shapes is None else self.shapes.at_targets(where),
            recorded=None if self.recorded is None else self.recorded.at_targets(where),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KeptTokens:
    """The kept tokens of each processed target: scores above `floor_M`, and those equal to it up to an id.

    Two numbers a target say it, so that the backward pass needs no second sort.
    """

    floor_M: torch.Tensor
    last_id_M: torch.Tensor
    recorded: Recorded | None = None

    def mask(self, scores_MV: torch.Tensor, target_id_M: torch.Tensor) -> torch.Tensor:
        floor_M1 = self.floor_M[:, None]
        ids_V = torch.arange(scores_MV.shape[1], device=scores_MV.device)
        mask_MV = (scores_MV > floor_M1) | ((scores_MV == floor_M1) & (ids_V <= self.last_id_M[:, None]))
        if self.recorded is not None:
            self.recorded.replace_in(mask_MV)
        return mask_MV.scatter_(1, target_id_M[:, None], True)


def temper(logits_MV: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Scores at most 0: from the largest down, so that a small temperature gives -inf, never inf."""
    if rows.shapes is not None:
        logits_MV = rows.shapes.apply(logits_MV)
    largest_M1 = logits_MV.amax(-1, keepdim=True)
    return (logits_MV - largest_M1).div_(rows.temperature_N[:, None].to(logits_MV.dtype))


def kept_tokens(scores_MV: torch.Tensor, rows: SamplingRows) -> KeptTokens:
    """Returns the tokens that top_k, top_p and min_p keep, in this order. Scores are tempered, their maximum
    is 0.
    """
    vocabulary = scores_MV.shape[1]
    floor_M = torch.full_like(scores_MV[:, 0], float("-inf"))
    last_id_M = torch.full_like(rows.top_k_N, vocabulary)
    if (rows.top_k_N > 0).any():
        floor_M = _top_k_floor(scores_MV, rows.top_k_N)
    nucleus_M = rows.top_p_N < 1
    if nucleus_M.any():
        floor_M, last_id_M = floor_M.clone(), last_id_M.clone()
        chosen_MV = scores_MV[nucleus_M]
        chosen_MV = chosen_MV.masked_fill(chosen_MV < floor_M[nucleus_M, None], float("-inf"))
        floor_M[nucleus_M], last_id_M[nucleus_M] = _top_p_floor(chosen_MV, rows.top_p_N[nucleus_M])
    lowest_M = rows.min_p_N.to(scores_MV.dtype).log()  # of 0: -inf, which keeps all
    last_id_M = torch.where(lowest_M > floor_M, vocabulary, last_id_M)
    floor_M = torch.maximum(floor_M, lowest_M)
    return KeptTokens(floor_M=floor_M, last_id_M=last_id_M, recorded=rows.recorded)


def _top_k_floor(scores_MV: torch.Tensor, top_k_M: torch.Tensor) -> torch.Tensor:
    """The k-th score; ties with it are kept."""
    limited_M = top_k_M > 0
    limit_M = top_k_M.clamp(1, scores_MV.shape[1])
    best_MK = scores_MV.topk(int(limit_M[limited_M].max()), dim=-1).values
    at_M1 = (limit_M[:, None] - 1).clamp(max=best_MK.shape[1] - 1)
    return torch.where(limited_M, best_MK.gather(1, at_M1)[:, 0], float("-inf"))


def _top_p_floor(scores_MV: torch.Tensor, top_p_M: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest set of most probable tokens whose sum reaches p: its last score, and the last id with it.

    Of equal scores the smaller ids come first. The most probable few tokens are enough for most rows; the
    others sort the whole vocabulary, which costs six times as much.
    """
    floor_M = torch.empty_like(scores_MV[:, 0])
    tied_M = torch.empty_like(floor_M, dtype=torch.long)
    norm_M1 = scores_MV.logsumexp(-1, keepdim=True)
    open_M = torch.arange(len(floor_M), device=floor_M.device)
    for width in (min(NUCLEUS, scores_MV.shape[1]), scores_MV.shape[1]):
        if not len(open_M):
            break
        best_MK = scores_MV[open_M].topk(width, dim=-1).values
        probability_MK = (best_MK - norm_M1[open_M]).exp_()
        sum_MK = probability_MK.cumsum(-1)
        p_M1 = top_p_M[open_M, None].to(sum_MK.dtype)
        last_M1 = ((sum_MK - probability_MK < p_M1).sum(-1, keepdim=True) - 1).clamp_(min=0)
        floor_M1 = best_MK.gather(1, last_M1)
        floor_M[open_M] = floor_M1[:, 0]
        tied_M[open_M] = last_M1[:, 0] + 1 - (best_MK > floor_M1).sum(-1)
        open_M = open_M[sum_MK[:, -1] < p_M1[:, 0]]
    tie_MV = scores_MV == floor_M[:, None]
    return floor_M, (tie_MV.cumsum(-1) < tied_M[:, None]).sum(-1)
