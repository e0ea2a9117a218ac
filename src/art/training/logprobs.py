"""Hidden states -> logprobs of given ids and entropies, never holding [T, vocabulary] of a large vocabulary.

The gradient of a logprob by the hidden state is the target's row of the output layer minus the mean of all
rows under the probabilities: where nothing but the hidden state has a gradient, the forward pass keeps that
mean, one vector of the hidden size a row. Otherwise the gradient of the logits is onehot(target) -
probabilities, which needs one logsumexp a row. Logits are computed in chunks, in the second case twice, and
forgotten. The gradient of an entropy H by the logits is -p (log p + H), kept or computed in the same way.

Letters: P = rows whose next-token distribution is needed, N = targets, M = targets that were sampled from a
tempered or truncated distribution, C = rows of a chunk, D = hidden size, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from art.engine.builtin.output_layer import widen
from art.training.sampling import KeptTokens, SamplingRows, kept_tokens, temper

CHUNK_ELEMENTS = 2**24
"""Logits that are computed at once: 64 MiB in float32. With 152k ids, half as many cost a tenth more time."""


class LogitHead:
    """The model's output layer with the scaling that its family applies to logits, in at least float32:
    weights in 16 bits are multiplied so too, as the builtin engine does.
    """

    def __init__(self, causal_lm: Any) -> None:
        widen(causal_lm)
        self._causal_lm = causal_lm
        config = causal_lm.config.get_text_config()
        self.vocab_size = int(causal_lm.get_output_embeddings().weight.shape[0])
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)  # Gemma 2
        scale = getattr(config, "logit_scale", None) or 1.0  # Cohere multiplies
        scale = scale * (getattr(config, "lm_head_multiplier", None) or 1.0)  # Falcon-H1
        self._scale = float(scale) / float(getattr(config, "logits_scaling", None) or 1.0)  # Granite divides

    def __call__(self, hidden_PD: torch.Tensor) -> torch.Tensor:
        logits_PV = self._causal_lm.get_output_embeddings()(hidden_PD)
        logits_PV = logits_PV.to(torch.promote_types(logits_PV.dtype, torch.float32))
        if self._scale != 1.0:
            logits_PV = logits_PV * self._scale
        if self._softcap is not None:
            logits_PV = torch.tanh(logits_PV / self._softcap) * self._softcap
        return logits_PV

    def plain_rows(self, hidden_PD: torch.Tensor) -> torch.Tensor | None:
        """Returns the weights [V, D] by which a logit is a plain product, or None: they have a gradient, a
        cap bends the logits, or another class or dtype computes them.
        """
        layer = self._causal_lm.get_output_embeddings()
        plain = type(layer) is torch.nn.Linear and layer.weight.dtype == hidden_PD.dtype
        if not plain or self._softcap is not None or self.trained():
            return None
        return layer.weight if layer.weight.dtype in (torch.float32, torch.float64) else None

    @property
    def scale(self) -> float:
        """Returns the factor of all logits."""
        return self._scale

    def trained(self) -> list[torch.nn.Parameter]:
        """The head's parameters with a gradient: none under a LoRA that leaves it alone."""
        return [one for one in self._causal_lm.get_output_embeddings().parameters() if one.requires_grad]


def target_logprobs(
    head: LogitHead,
    hidden_PD: torch.Tensor,
    target_predictor_N: torch.Tensor,
    target_id_N: torch.Tensor,
    *,
    sampling: SamplingRows | None = None,
    entropies: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
    most_rows: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprob of each target under its predictor's distribution [N], and each predictor's entropy [P], with a
    gradient where `entropies`.

    `target_predictor_N` says which row of `hidden_PD` predicts the target, in increasing order. With
    `sampling`, a target's distribution is the tempered and truncated one that it was drawn from; entropies
    stay those of the model's own. `most_rows`: rows of logits that exist at once at most, whatever
    `chunk_elements` allows.
    """
    if entropies:  # whose gradient takes a fourth copy of a chunk: the memory plan counts three
        chunk_elements //= 2
    rows = max(1, min(chunk_elements // head.vocab_size, most_rows or chunk_elements))
    batch = _Targets(
        head=head,
        predictor_N=target_predictor_N,
        id_N=target_id_N,
        sampling=sampling,
        entropies=entropies,
        rows=rows,
    )
    return _Logprobs.apply(batch, hidden_PD, *head.trained())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Targets:
    """The targets, and the number of predictors computed at once."""

    head: LogitHead
    predictor_N: torch.Tensor
    id_N: torch.Tensor
    sampling: SamplingRows | None
    entropies: bool
    """Whether entropies have a gradient."""
    rows: int

    def chunks(self, predictors: int) -> Iterator[_Chunk]:
        starts = torch.arange(0, predictors, self.rows, device=self.predictor_N.device)
        bounds = [*torch.searchsorted(self.predictor_N, starts).tolist(), len(self.id_N)]
        processed_N = None if self.sampling is None else self.sampling.processed_N
        for number, start in enumerate(range(0, predictors, self.rows)):
            mine = slice(bounds[number], bounds[number + 1])
            where_M = None
            if processed_N is not None and bool(processed_N[mine].any()):
                where_M = processed_N[mine].nonzero()[:, 0]
            yield _Chunk(
                predictors=slice(start, min(start + self.rows, predictors)),
                targets=mine,
                row_N=self.predictor_N[mine] - start,
                id_N=self.id_N[mine],
                where_M=where_M,
                sampling=None if where_M is None else self.sampling.at_targets(mine).at_targets(where_M),  # type: ignore[union-attr]
            )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Chunk:
    predictors: slice
    targets: slice
    row_N: torch.Tensor
    """The row of each target's predictor within the chunk."""
    id_N: torch.Tensor
    where_M: torch.Tensor | None
    """Which of the chunk's targets are processed; None: none."""
    sampling: SamplingRows | None
    """The sampling of the processed targets; None: no target is processed."""


@dataclass(frozen=True, slots=True, eq=False)
class _RowFigures:
    """The figures of the logits of some rows that are kept."""

    norm_C: torch.Tensor
    """logsumexp."""
    entropy_C: torch.Tensor
    """The entropy of each row's softmax, in nats."""
    mean_CD: torch.Tensor | None
    """The mean of the output layer's rows under the softmax, where it was asked for."""
    slope_CD: torch.Tensor | None = None
    """- sum of p (log p + entropy) times the output layer's row, where it was asked for."""


def row_figures(
    logits_CV: torch.Tensor, weights_VD: torch.Tensor | None = None, *, entropies: bool = False
) -> _RowFigures:
    """The figures of each row. One `exp` serves all."""
    most_C = logits_CV.amax(-1)
    scale_CV = (logits_CV - most_C[:, None]).exp_()
    sum_C = scale_CV.sum(-1)
    norm_C = most_C + sum_C.log()
    mean_CD = None if weights_VD is None else (scale_CV @ weights_VD).div_(sum_C[:, None])
    if entropies and weights_VD is not None and mean_CD is not None:
        scale_CV.mul_(logits_CV - norm_C[:, None])
        entropy_C = -scale_CV.sum(-1) / sum_C
        slope_CD = (
            (scale_CV @ weights_VD).div_(-sum_C[:, None]).addcmul_(mean_CD, entropy_C[:, None], value=-1)
        )
        return _RowFigures(norm_C, entropy_C, mean_CD, slope_CD)
    return _RowFigures(norm_C, norm_C - scale_CV.mul_(logits_CV).sum(-1) / sum_C, mean_CD)


class _Logprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, batch: _Targets, hidden_PD: torch.Tensor, *trained: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies, norms, processed, means = [], [], [], [], []
        weights_VD = batch.head.plain_rows(hidden_PD) if ctx.needs_input_grad[1] else None
        for chunk in batch.chunks(len(hidden_PD)):
            logits_CV = batch.head(hidden_PD[chunk.predictors])
            tempered = None if chunk.where_M is None else _tempered(logits_CV, chunk)
            figures = row_figures(
                logits_CV, weights_VD if tempered is None else None, entropies=batch.entropies
            )
            logprob_N = logits_CV[chunk.row_N, chunk.id_N] - figures.norm_C[chunk.row_N]
            if tempered is not None and chunk.where_M is not None:
                logprob_N[chunk.where_M] = tempered[0]
                processed.append(tempered[1:])
            entropies.append(figures.entropy_C)
            logprobs.append(logprob_N)
            norms.append(figures.norm_C)
            means.append((figures.mean_CD, figures.slope_CD))
            del logits_CV  # before the next chunk's are made
        ctx.batch, ctx.processed, ctx.means = batch, processed, means
        entropy_P = torch.cat(entropies)
        ctx.save_for_backward(hidden_PD, torch.cat(norms), entropy_P, *trained)
        if not batch.entropies:
            ctx.mark_non_differentiable(entropy_P)
        return torch.cat(logprobs), entropy_P

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: torch.Tensor, grad_P: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_PD, norm_P, entropy_P, *trained = ctx.saved_tensors
        batch: _Targets = ctx.batch
        processed = iter(ctx.processed)
        grad_PD = torch.empty_like(hidden_PD)
        totals = [torch.zeros_like(parameter) for parameter in trained]
        for chunk, (mean_CD, slope_CD) in zip(batch.chunks(len(hidden_PD)), ctx.means, strict=True):
            if mean_CD is not None:
                grad_PD[chunk.predictors] = _hidden_slope(batch.head, mean_CD, grad_N[chunk.targets], chunk)
                if slope_CD is not None:
                    scale_C = grad_P[chunk.predictors] * batch.head.scale
                    grad_PD[chunk.predictors] += slope_CD * scale_C[:, None]
                continue
            with torch.enable_grad():
                hidden_CD = hidden_PD[chunk.predictors].detach().requires_grad_()
                logits_CV = batch.head(hidden_CD)
            more = None if chunk.where_M is None else next(processed)
            slope_CV = _slope(
                logits_CV.detach(), norm_P[chunk.predictors], grad_N[chunk.targets], chunk, more
            )
            if batch.entropies:
                log_CV = logits_CV.detach() - norm_P[chunk.predictors, None]
                grown_CV = log_CV.exp().mul_(log_CV.add_(entropy_P[chunk.predictors, None]))
                slope_CV.addcmul_(grown_CV, grad_P[chunk.predictors, None], value=-1)
            grad_CD, *shares = torch.autograd.grad(logits_CV, [hidden_CD, *trained], slope_CV)
            grad_PD[chunk.predictors] = grad_CD
            for total, share in zip(totals, shares, strict=True):
                total.add_(share)
            del logits_CV, slope_CV
        return None, grad_PD, *totals


def _hidden_slope(
    head: LogitHead, mean_CD: torch.Tensor, grad_N: torch.Tensor, chunk: _Chunk
) -> torch.Tensor:
    """Gradient of the chunk's hidden states, of targets from the model's own distribution."""
    weights_VD = head.plain_rows(mean_CD)
    assert weights_VD is not None
    # Several targets may share a predictor: its probabilities count once for each.
    total_C = torch.zeros_like(mean_CD[:, 0]).index_add_(0, chunk.row_N, grad_N)
    slope_CD = mean_CD * -total_C[:, None]
    slope_CD.index_add_(0, chunk.row_N, weights_VD[chunk.id_N] * grad_N[:, None])
    return slope_CD.mul_(head.scale)


def _slope(
    logits_CV: torch.Tensor,
    norm_C: torch.Tensor,
    grad_N: torch.Tensor,
    chunk: _Chunk,
    processed: tuple[KeptTokens, torch.Tensor] | None,
) -> torch.Tensor:
    """Gradient of the chunk's logits; `logits_CV` itself is left as it is."""
    plain_N = grad_N
    if chunk.where_M is not None:
        plain_N = grad_N.index_fill(0, chunk.where_M, 0.0)
    # Several targets may share a predictor: its probabilities count once for each.
    total_C = torch.zeros_like(norm_C).index_add_(0, chunk.row_N, plain_N)
    slope_CV = (logits_CV - norm_C[:, None]).exp_().mul_(-total_C[:, None])
    slope_CV.index_put_((chunk.row_N, chunk.id_N), plain_N, accumulate=True)
    if processed is not None and chunk.where_M is not None and chunk.sampling is not None:
        keep, norm_M = processed
        row_M, id_M = chunk.row_N[chunk.where_M], chunk.id_N[chunk.where_M]
        scores_MV = temper(logits_CV[row_M], chunk.sampling)
        scores_MV.masked_fill_(~keep.mask(scores_MV, id_M), float("-inf"))
        share_M = grad_N[chunk.where_M] / chunk.sampling.temperature_N.to(grad_N.dtype)
        slope_MV = scores_MV.sub_(norm_M[:, None]).exp_().mul_(-share_M[:, None])
        slope_MV.scatter_add_(1, id_M[:, None], share_M[:, None].to(slope_MV.dtype))
        if chunk.sampling.shapes is not None:
            chunk.sampling.shapes.scale_slopes(slope_MV, logits_CV[row_M])
        slope_CV.index_add_(0, row_M, slope_MV)
    return slope_CV


def _tempered(logits_CV: torch.Tensor, chunk: _Chunk) -> tuple[torch.Tensor, KeptTokens, torch.Tensor]:
    """Logprobs of the processed targets, and what the backward pass needs: the kept set and its norm."""
    assert chunk.where_M is not None and chunk.sampling is not None
    row_M, id_M = chunk.row_N[chunk.where_M], chunk.id_N[chunk.where_M]
    scores_MV = temper(logits_CV[row_M], chunk.sampling)
    keep = kept_tokens(scores_MV, chunk.sampling)
    norm_M = scores_MV.masked_fill(~keep.mask(scores_MV, id_M), float("-inf")).logsumexp(-1)
    return scores_MV.gather(1, id_M[:, None])[:, 0] - norm_M, keep, norm_M
