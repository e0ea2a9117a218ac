"""Plain rows for models that cannot share: every entry once, behind its whole context, within the budget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, build
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_policies import games, ids_to, policy, request, trainer

from art.errors import ConfigurationError
from art.training.attention.checks import adopt_tree_attention
from art.training.packing.plain_rows import group_rows, pack_rows
from art.training.packing.runs import MicroBatch, Packing
from art.training.policy import Policy
from art.training.trainer import Trainer
from art.wire.training import LoraSpec

MODEL = "project/model"


def rows_of(micro: MicroBatch) -> list[list[int]]:
    starts = np.flatnonzero(micro.depth_T == 0).tolist()
    bounds = zip(starts, [*starts[1:], len(micro.tokens_T)], strict=True)
    return [micro.tokens_T[start:stop].tolist() for start, stop in bounds]


def scores(model: Policy, packing: Packing, entries: int) -> torch.Tensor:
    found = torch.full((entries,), float("nan"))
    for micro in packing.micro_batches:
        got, _ = model.entry_scores(micro)
        found[micro.entry_E] = got.logprobs_E.detach()
    return found


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 200))
def test_every_entry_is_scored_once_behind_its_whole_context(seed: int, budget: int) -> None:
    batch = games(seed, groups=2, size=4)
    packing = pack_rows(batch.tree, batch.entries, budget)
    scored = np.concatenate([micro.entry_E for micro in packing.micro_batches])
    assert sorted(scored.tolist()) == list(range(len(batch.entries)))
    forwarded: set[tuple[int, ...]] = set()
    for micro in packing.micro_batches:
        rows = rows_of(micro)
        width = max(len(row) for row in rows)
        assert len(rows) * width <= max(budget, width), "padding counts"
        assert len(rows) == 1 or width * len(rows) <= budget
        flat = [row[: at + 1] for row in rows for at in range(len(row))]
        for at, entry in enumerate(micro.entry_E.tolist()):
            target = micro.entry_target_E[at]
            predictor = micro.predictor_P[micro.target_predictor_N[target]]
            whole = [*flat[predictor], int(micro.target_id_N[target])]
            assert whole == ids_to(batch.tree, int(batch.entries.token_E[entry]))
        assert (np.diff(micro.target_predictor_N) >= 0).all()
        new = {tuple(prefix) for prefix in flat} - forwarded
        assert micro.repeated == len(flat) - len(new)
        forwarded |= new
    assert packing.lower_bound == len(forwarded)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_rollout_on_one_path_is_scored_in_one_micro_batch(seed: int) -> None:
    batch = games(seed, groups=2, size=4)
    packing = pack_rows(batch.tree, batch.entries, 40)
    assert packing.cut_sequences == 0
    place = np.zeros(len(batch.entries), int)
    for number, micro in enumerate(packing.micro_batches):
        place[micro.entry_E] = number
    for sequence in np.unique(batch.entries.sequence_E):
        assert len(set(place[batch.entries.sequence_E == sequence])) == 1


def test_a_forest_of_rows_is_a_tree_too() -> None:
    """Tree attention computes from packed rows what it computes from the packed tree."""
    batch, model = games(2), policy()
    one = scores(model, pack_rows(batch.tree, batch.entries, 60), len(batch.entries))
    other = scores(model, model.pack(batch.tree, batch.entries, 60), len(batch.entries))
    assert torch.allclose(one, other, atol=1e-5)


def test_rows_of_similar_length_lie_together() -> None:
    assert group_rows([5, 1, 9, 5, 2], 10) == [[1, 4], [0, 3], [2]]
    assert group_rows([50], 10) == [[0]]


@pytest.mark.slow
def test_a_hybrid_is_trained_by_the_same_step() -> None:
    """What linear attention computes of a row does not depend on the rows beside it, nor on padding."""
    batch = games(3)
    results = []
    for budget in (30, 400):
        model = Policy(build(FAMILIES["qwen3-next"](), "eager", torch.float32), name="hybrid")
        made = Trainer(model, token_budget=budget)
        made.open(MODEL, LoraSpec(r=4, alpha=8))
        results.append(made.train(batch.tree, batch.entries, request(batch)))
    for key in ("loss/train", "loss/grad_norm", "loss/entropy"):
        assert results[0][key] == pytest.approx(results[1][key], rel=1e-4)


def test_a_model_that_looks_ahead_is_refused() -> None:
    config = FAMILIES["gemma3"]()
    config.use_bidirectional_attention = True
    with pytest.raises(ConfigurationError, match="later tokens"):
        adopt_tree_attention(build(config, "eager", torch.float32))


def test_a_checkpoint_knows_its_targets_however_they_were_spelled(tmp_path: Path) -> None:
    made = trainer(lora=LoraSpec(r=2))
    made.save(MODEL, tmp_path / "0000")
    spelled = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert made.open(MODEL, LoraSpec(r=2, targets=spelled), checkpoint=tmp_path / "0000") == 0
    assert made.open(MODEL, LoraSpec(r=2), checkpoint=tmp_path / "0000") == 0
