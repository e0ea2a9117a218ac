"""The terms of preferences. A pair is one sequence of loss entries: chosen where its advantage is positive.

    d = log p - log q, summed over the tokens of a reply      p: policy, q: reference

    DPO    -log sigmoid(beta (d_chosen - d_rejected))         Rafailov et al. (arXiv:2305.18290)
    cDPO   (1 - e) of that, and e of that with the two exchanged        Mitchell, 2023
    IPO    (d_chosen - d_rejected - 1 / (2 beta))^2           Azar et al. (arXiv:2310.12036)
    KTO    weight (1 - sigmoid(+-beta (d - z)))               Ethayarajh et al. (arXiv:2402.01306)

Without a reference q is 1. The term of a sequence is spread evenly over its tokens, each of weight 1.

Letters: E = loss entries.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import logsigmoid

from art.training.losses.base import LossInputs, LossOutput
from art_extensions.preferences.losses import KtoParams, PreferenceParams


def preference(x: LossInputs, params: PreferenceParams) -> LossOutput:
    """The loss of pairs, and how far they are apart."""
    chosen_E = x.advantages_E > 0
    ratio_E = _log_ratio(x)
    better_E, worse_E = _side(x, ratio_E, chosen_E, params), _side(x, ratio_E, ~chosen_E, params)
    apart_E = better_E - worse_E
    margin_E = params.beta * apart_E
    if params.ipo:
        loss_E = (apart_E - 1 / (2 * params.beta)).square()
    else:
        wrong = params.label_smoothing
        loss_E = -(1 - wrong) * logsigmoid(margin_E) - wrong * logsigmoid(-margin_E)
    figures = {
        "accuracy": margin_E > 0,
        "margin": margin_E,
        "chosen_reward": params.beta * better_E,
        "rejected_reward": params.beta * worse_E,
        "chosen_logprob": _side(x, x.logprobs_E, chosen_E, params),
        "rejected_logprob": _side(x, x.logprobs_E, ~chosen_E, params),
    }
    return _spread(x, loss_E, figures)


def kto(x: LossInputs, params: KtoParams) -> LossOutput:
    """The loss of labelled replies: a positive advantage is the weight of a desirable one, a negative one
    that of an undesirable one.
    """
    apart_E = x.sequence_sum(_log_ratio(x))
    sign_E = x.advantages_E.sign()
    loss_E = x.advantages_E.abs() * torch.sigmoid(-sign_E * params.beta * (apart_E - params.reference_point))
    desirable_E, reward_E = sign_E > 0, params.beta * apart_E
    none_E = torch.zeros_like(reward_E)
    said_E = x.sequence_sum(x.logprobs_E)
    figures = {
        "log_ratio": apart_E,
        "desirable": desirable_E,
        "chosen_reward": torch.where(desirable_E, reward_E, none_E),
        "rejected_reward": torch.where(desirable_E, none_E, reward_E),
        "chosen_logprob": torch.where(desirable_E, said_E, none_E),
        "rejected_logprob": torch.where(desirable_E, none_E, said_E),
    }
    return _spread(x, loss_E, figures)


def _spread(x: LossInputs, loss_E: torch.Tensor, figures: Mapping[str, torch.Tensor]) -> LossOutput:
    """The share of the mean over sequences, of the loss and of figures that are metrics."""
    part_E = 1 / x.sequence_sum(torch.ones_like(loss_E))
    metrics = {f"objective/{name}": x.share(value_E * part_E) for name, value_E in figures.items()}
    return LossOutput(loss=x.mean(loss_E * part_E), metrics=metrics)


def _log_ratio(x: LossInputs) -> torch.Tensor:
    return x.logprobs_E if x.reference_logprobs_E is None else x.logprobs_E - x.reference_logprobs_E


def _side(
    x: LossInputs, value_E: torch.Tensor, side_E: torch.Tensor, params: PreferenceParams
) -> torch.Tensor:
    """The sum over one side of each pair, or its mean, at all entries of the pair."""
    total_E = x.sequence_sum(torch.where(side_E, value_E, torch.zeros_like(value_E)))
    if not params.length_normalised:
        return total_E
    return total_E / x.sequence_sum(side_E.to(value_E.dtype))
