"""What is not trained moves nothing: neither tokens that a mask dropped, nor samples that are context.

Reported of other trainers: values at masked positions changed a loss of sequences (areal-project/AReaL#1346),
and a rejected token's reward changed advantages of accepted ones (verl-project/verl#6362). A mask of tokens
under a sequence's ratio would do the first; `check_algorithm` refuses it. The second, of whole rollouts, is
tests/training/test_masked_rollouts.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loss_entries import entries, inputs

from art.batch.algorithms import check_algorithm, resolve
from art.batch.algorithms.facts import LOSSES
from art.batch.batch_types import GroupRow, RolloutRow, SampleRow, Untrainable
from art.batch.build import build_batch
from art.errors import ConfigurationError
from art.training.losses.registry import make_loss
from art.wire.algorithm import Algorithm

MASKS: dict[str, tuple[float, float]] = {
    "token_mask": (0.7, 1.4),
    "sequence_mask": (0.5, 2.0),
    "geometric_mask": (0.9, 1.1),
    "outlier_mask": (0.6, 1.6),
}
RATIOS = ["token", "sequence", "geometric", "average", "geometric_average"]
FAR = 10.0


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    loss=st.sampled_from(sorted(LOSSES.keys() - {"cross_entropy"})),
    ratio=st.sampled_from(RATIOS),
    ratio_to=st.sampled_from(["sampler", "trainer"]),
    kind=st.sampled_from(sorted(MASKS)),
    seed=st.integers(0, 200),
)
def test_dropped_tokens_move_nothing(loss: str, ratio: str, ratio_to: str, kind: str, seed: int) -> None:
    low, high = MASKS[kind]
    parts = {"loss": {"name": loss}, "ratio": ratio, "ratio_to": ratio_to, "updates": {"epochs": 2}}
    algorithm = Algorithm.model_validate({**parts, "mismatch": [{"kind": kind, "low": low, "high": high}]})
    try:
        check_algorithm(algorithm)
    except ConfigurationError:
        assume(False)
    batch = entries(seed)
    if ratio_to == "sampler":
        batch["proximal_logprobs_E"] = batch["sampled_logprobs_E"]
    plain = make_loss(algorithm)(inputs(batch))
    dropped_E = plain.masked_E
    assert dropped_E is not None
    assume(bool(dropped_E.any()) and not bool(dropped_E.all()))
    gradient_E = torch.autograd.grad(plain.loss, batch["logprobs_E"])[0]
    assert not gradient_E[dropped_E].any()

    other = dict(batch)
    trainer_E = batch["logprobs_E"] if ratio_to == "sampler" else batch["proximal_logprobs_E"]
    off_E = (trainer_E - batch["sampled_logprobs_E"]).detach()
    sums_S = torch.zeros(int(batch["sequence_E"].max()) + 1, dtype=off_E.dtype)
    of_sequence_E = sums_S.index_add(0, batch["sequence_E"], off_E)[batch["sequence_E"]]
    away_E = torch.sign(of_sequence_E if kind in ("sequence_mask", "geometric_mask") else off_E)
    moved_E = torch.where(dropped_E, batch["sampled_logprobs_E"] - FAR * away_E, batch["sampled_logprobs_E"])
    other["sampled_logprobs_E"] = moved_E
    if ratio_to == "sampler":
        other["proximal_logprobs_E"] = moved_E
    other["advantages_E"] = torch.where(dropped_E, batch["advantages_E"] + FAR, batch["advantages_E"])
    found = make_loss(algorithm)(inputs(other))
    assert found.masked_E is not None and torch.equal(found.masked_E, dropped_E)
    assert found.loss.item() == pytest.approx(plain.loss.item(), rel=1e-12)
    assert torch.equal(torch.autograd.grad(found.loss, batch["logprobs_E"])[0], gradient_E)


def rows(context: list[float], **more: Any) -> list[GroupRow]:
    """Two rollouts of two turns: of each the first turn was drawn greedily, and is context."""
    greedy = Untrainable(reason="greedy", drawn="temperature = 0.0")

    def rollout(name: str, reward: float) -> RolloutRow:
        first = SampleRow(
            sample_id=f"{name}0",
            prompt_ids=[5, 6],
            completion_ids=[7, 8],
            completion_logprobs=context,
            untrainable=greedy,
        )
        last = SampleRow(
            sample_id=f"{name}1",
            prompt_ids=[5, 6, 7, 8, 9],
            completion_ids=[10, 11, 12],
            completion_logprobs=[-0.5, -1.0, -0.25],
            parent_id=f"{name}0",
        )
        return RolloutRow(rollout=name, reward=reward, samples=[first, last])

    return [GroupRow(rollouts=[rollout("a", 1.0), rollout("b", 0.0)])]


@pytest.mark.parametrize("name", ["art", "grpo", "gspo", "gmpo", "reinforce++"])
def test_logprobs_of_context_are_in_no_entry(name: str) -> None:
    algorithm = resolve(name)
    plain, other = (build_batch(rows([one, one]), algorithm=algorithm) for one in (-0.1, -0.1 - FAR))
    assert plain.normalizer == other.normalizer and math.isfinite(plain.normalizer)
    assert plain.entries.logprob_E.tolist() == [-0.5, -1.0, -0.25] * 2
    for field in ("token_E", "logprob_E", "advantage_E", "weight_E", "sequence_E"):
        assert np.array_equal(getattr(plain.entries, field), getattr(other.entries, field)), field
