"""Hidden states -> logprobs of given ids and entropies, never holding [T, vocabulary] for a large vocabulary.

Letters: P = rows whose next-token distribution is needed, N = targets, D = hidden size, V = vocabulary.
"""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 2**25
"""Logits that are held at once (128 MiB in float32); above, rows are done in chunks and recomputed in the
backward.
"""


class LogitHead:
    """The model's output layer with the scaling that its family applies to logits, in at least float32."""

    def __init__(self, causal_lm: torch.nn.Module) -> None:
        self._causal_lm = causal_lm
        config = causal_lm.config
        self.vocab_size = int(causal_lm.get_output_embeddings().weight.shape[0])
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)  # Gemma 2
        scale = getattr(config, "logit_scale", None) or 1.0  # Cohere multiplies
        self._scale = float(scale) / float(getattr(config, "logits_scaling", None) or 1.0)  # Granite divides

    def __call__(self, hidden_PD: torch.Tensor) -> torch.Tensor:
        logits_PV = self._causal_lm.get_output_embeddings()(hidden_PD)
        logits_PV = logits_PV.to(torch.promote_types(logits_PV.dtype, torch.float32))
        if self._scale != 1.0:
            logits_PV = logits_PV * self._scale
        if self._softcap is not None:
            logits_PV = torch.tanh(logits_PV / self._softcap) * self._softcap
        return logits_PV


def target_logprobs(
    head: LogitHead,
    hidden_PD: torch.Tensor,
    target_predictor_N: torch.Tensor,
    target_id_N: torch.Tensor,
    *,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprob of each target under its predictor's distribution [N], and each predictor's entropy [P] (no
    gradient).

    `target_predictor_N` says which row of `hidden_PD` predicts the target, in increasing order.
    """
    rows = max(1, chunk_elements // head.vocab_size)
    if len(hidden_PD) <= rows:
        return _score(head, hidden_PD, target_predictor_N, target_id_N)
    starts = torch.arange(0, len(hidden_PD), rows, device=target_predictor_N.device)
    bounds = [*torch.searchsorted(target_predictor_N, starts).tolist(), len(target_id_N)]
    logprobs, entropies = [], []
    for number, start in enumerate(starts.tolist()):
        mine = slice(bounds[number], bounds[number + 1])
        logprob, entropy = checkpoint(
            _score,
            head,
            hidden_PD[start : start + rows],
            target_predictor_N[mine] - start,
            target_id_N[mine],
            use_reentrant=False,
        )
        logprobs.append(logprob)
        entropies.append(entropy)
    return torch.cat(logprobs), torch.cat(entropies)


def _score(
    head: LogitHead, hidden_PD: torch.Tensor, target_predictor_N: torch.Tensor, target_id_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_PV = head(hidden_PD)
    norm_P = torch.logsumexp(logits_PV, dim=-1)
    logprob_N = logits_PV[target_predictor_N, target_id_N] - norm_P[target_predictor_N]
    with torch.no_grad():
        entropy_P = norm_P - (torch.exp(logits_PV - norm_P.unsqueeze(-1)) * logits_PV).sum(dim=-1)
    return logprob_N, entropy_P
