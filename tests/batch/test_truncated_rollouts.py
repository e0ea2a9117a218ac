"""Rollouts that are left out as truncated take no part in any divisor: they scale nobody's gradient.

Reported of another trainer: their tokens were masked in the numerator and counted in the denominator
(huggingface/trl#6439).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rows import attempt

from art.batch.algorithms import resolve
from art.batch.batch_types import Batch, GroupRow, RolloutRow
from art.batch.build import build_batch

GROUP = st.lists(st.integers(1, 6), min_size=2, max_size=4)
"""The tokens of each rollout that was not cut."""
CUT = st.lists(st.integers(1, 40), max_size=3)
"""The tokens of those that were."""
KINDS: list[Any] = ["token_mean", "sequence_mean", "group_mean", {"kind": "constant", "length": 9}]


def scales(batch: Batch) -> dict[str, list[float]]:
    """What each token's term is multiplied by, by the sample."""
    scale_E = batch.entries.weight_E / batch.normalizer
    owner_E = np.repeat([one.sample_id for one in batch.samples], [one.tokens for one in batch.samples])
    return {one.sample_id: scale_E[owner_E == one.sample_id].tolist() for one in batch.samples}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("zero_advantage", ["count", "drop"])
@settings(max_examples=30)
@given(groups=st.lists(st.tuples(GROUP, CUT), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_truncated_rollouts_scale_nobody(
    kind: Any, zero_advantage: str, groups: list[tuple[list[int], list[int]]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    chosen = resolve("grpo", aggregation=kind, truncated="drop", zero_advantage=zero_advantage)
    whole, alone = [], []
    for number, (lengths, cut_lengths) in enumerate(groups):
        kept = [attempt(f"{number}.{n}", rng.normal(), length) for n, length in enumerate(lengths)]
        cut: list[RolloutRow] = [
            attempt(f"{number}.cut{n}", rng.normal(), length, truncated=True)
            for n, length in enumerate(cut_lengths)
        ]
        alone.append(GroupRow(rollouts=kept))
        whole.append(GroupRow(rollouts=[*cut, *kept]))
    with_cut, without = (build_batch(some, algorithm=chosen) for some in (whole, alone))
    assert scales(with_cut) == scales(without)
    assert len(with_cut.samples) == sum(len(lengths) for lengths, _ in groups)
    trained = build_batch(whole, algorithm=chosen.model_copy(update={"truncated": "train"}))
    assert (scales(trained) == scales(without)) == (not any(cut for _, cut in groups)), (
        "else nothing is shown"
    )
