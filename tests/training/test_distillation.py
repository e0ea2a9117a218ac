from __future__ import annotations

import torch

from art.training.token_advantages import distillation_advantages


def test_what_the_teacher_likes_better_has_a_positive_advantage() -> None:
    logprobs_E = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    advantages_E = distillation_advantages(torch.tensor([-0.5, -1.0, -3.0]), logprobs_E)
    assert advantages_E.tolist() == [0.5, 0.0, -2.0] and not advantages_E.requires_grad


def test_the_policy_gradient_is_that_of_the_reverse_kl() -> None:
    """In expectation over all ids that the policy may sample, enumerated."""
    generator = torch.Generator().manual_seed(0)
    logits_V = torch.randn(11, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher_V = torch.log_softmax(torch.randn(11, generator=generator, dtype=torch.float64), 0)
    policy_V = torch.log_softmax(logits_V, 0)
    advantages_V = distillation_advantages(teacher_V, policy_V)
    (ascent_V,) = torch.autograd.grad((policy_V.exp().detach() * advantages_V * policy_V).sum(), logits_V)
    policy_V = torch.log_softmax(logits_V, 0)
    (descent_V,) = torch.autograd.grad((policy_V.exp() * (policy_V - teacher_V)).sum(), logits_V)
    torch.testing.assert_close(ascent_V, -descent_V, rtol=1e-12, atol=1e-12)
