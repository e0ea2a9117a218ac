"""On-policy distillation: the policy samples, a teacher says how likely it would have sampled the same.

Letters: E = loss entries.
"""

from __future__ import annotations

import torch


def distillation_advantages(teacher_logprobs_E: torch.Tensor, logprobs_E: torch.Tensor) -> torch.Tensor:
    """log(teacher's probability / policy's) of each sampled token, no gradient.

    As an advantage it descends the reverse KL from policy to teacher, token by token (Agarwal et al.,
    arXiv:2306.13649; Lu et al., "On-Policy Distillation", 2025): its expectation over what the policy samples
    is -KL(policy || teacher). `logprobs_E` is the policy's own before the step's first update.

    >>> distillation_advantages(torch.tensor([-0.5, -3.0]), torch.tensor([-1.0, -1.0])).tolist()
    [0.5, -2.0]
    """
    return (teacher_logprobs_E - logprobs_E).detach()
