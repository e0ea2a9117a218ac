"""Penalties are counted between steps and applied within them, and cost a waiting request nothing."""

from __future__ import annotations

import torch

from art.engine.builtin.sampler import make_penalties
from art.engine.protocol import Sampling

ASKED = Sampling(max_tokens=9, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25)


def test_nothing_is_kept_for_a_request_until_it_is_sampled() -> None:
    penalties = make_penalties(ASKED, [1, 2])
    assert penalties is not None and not [v for v in vars(penalties).values() if isinstance(v, torch.Tensor)]
    logits = torch.tensor([3.0, 3.0, -3.0, 1.0])
    with torch.inference_mode():
        first = penalties.apply(logits.clone())
    assert first.tolist() == [3.0, 1.5, -6.0, 1.0]
    penalties.count(3)
    penalties.count(3)
    with torch.inference_mode():
        second = penalties.apply(logits.clone())
    assert second.tolist() == [3.0, 1.5, -6.0, 0.5 - 2 * 0.5 - 0.25]


def test_what_penalises_nothing_is_no_penalty() -> None:
    assert make_penalties(Sampling(max_tokens=1), [1]) is None
