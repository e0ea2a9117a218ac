from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_policies import MODEL, VOCABULARY, games, policy, request, trainer

from art.errors import CheckpointError, ConfigurationError, NotFoundError, TokenMismatchError, TrainingError
from art.server.checkpoints.checkpoints import Checkpoints
from art.training.packing.pack import pack
from art.training.trainer import Trainer
from art.wire.training import LoraSpec

RESUME = """
import sys, torch
from pathlib import Path
torch.set_num_threads(1)
sys.path.insert(0, {here!r})
from tiny_policies import MODEL, games, request, trainer
from art.wire.training import LoraSpec
made = trainer()
step = made.open(MODEL, LoraSpec.model_validate_json(sys.argv[1]), checkpoint=Path(sys.argv[2]))
for step in range(step, 5):
    batch = games(step)
    made.train(batch.tree, batch.entries, request(batch, step))
made.save(MODEL, Path(sys.argv[3]))
"""


def weights(made: Trainer, name: str = MODEL) -> dict[str, torch.Tensor]:
    return {key: value.detach().clone() for key, value in made._open[name].parameters.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_a_new_process_continues_to_the_same_bytes(tmp_path: Path, dropout: float) -> None:
    lora = LoraSpec(r=4, alpha=8, dropout=dropout)
    made = trainer(lora=lora)
    for step in range(5):
        batch = games(step)
        made.train(batch.tree, batch.entries, request(batch, step))
        if step == 1:
            made.save(MODEL, tmp_path / "0002")
    made.save(MODEL, tmp_path / "straight")
    program = RESUME.format(here=str(Path(__file__).parent))
    arguments = [lora.model_dump_json(), str(tmp_path / "0002"), str(tmp_path / "resumed")]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, timeout=240)
    for file in (tmp_path / "straight").iterdir():
        assert file.read_bytes() == (tmp_path / "resumed" / file.name).read_bytes(), file.name


@pytest.mark.slow
def test_dropout_is_live_and_follows_the_seed() -> None:
    def after(dropout: float, seed: int) -> dict[str, torch.Tensor]:
        made, batch = trainer(lora=LoraSpec(r=4, dropout=dropout), seed=seed), games()
        for step in range(2):
            made.train(batch.tree, batch.entries, request(batch, step))
        return weights(made)

    assert same(after(0.5, 0), after(0.5, 0))
    assert not same(after(0.5, 0), after(0.0, 0))


@pytest.mark.slow
def test_scoring_has_no_dropout() -> None:
    made, batch = trainer(lora=LoraSpec(r=4, dropout=0.5)), games()
    for step in range(3):
        made.train(batch.tree, batch.entries, request(batch, step))
    assert made.score(MODEL, [[1, 2, 3, 4]]) == made.score(MODEL, [[1, 2, 3, 4]])


@pytest.mark.slow
def test_training_makes_good_tokens_likelier() -> None:
    made, batch = trainer(), games()
    entries = dataclasses.replace(batch.entries, advantage_E=np.ones(len(batch.entries), np.float32))
    before = made.train(batch.tree, entries, request(batch, 0))
    for step in range(1, 8):
        after = made.train(batch.tree, entries, request(batch, step))
    assert after["loss/ratio_mean"] > 1.2 * before["loss/ratio_mean"]
    assert after["loss/entropy"] < before["loss/entropy"]


def test_the_metrics_say_what_happened() -> None:
    made, batch = trainer(token_budget=60), games()
    seen: list[tuple[int, int]] = []
    metrics = made.train(
        batch.tree, batch.entries, request(batch), lambda done, total: seen.append((done, total))
    )
    packing = pack(batch.tree, batch.entries, 60)
    assert len(packing.micro_batches) > 1
    assert seen[-1] == (packing.forwarded, packing.forwarded) and len(seen) == len(packing.micro_batches)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert metrics["data/step_trainer_tokens"] == len(batch.entries)
    assert metrics["data/forwarded_tokens"] == packing.forwarded >= metrics["data/tree_lower_bound"]
    assert metrics["data/attention_pairs_computed"] >= metrics["data/attention_pairs_needed"]
    assert 0 < metrics["data/fill"] <= 1
    assert metrics["loss/learning_rate"] == 1e-2 and metrics["loss/grad_norm"] > 0
    assert 0 < metrics["loss/entropy"] <= np.log(VOCABULARY)
    assert metrics["loss/logprob_difference_mean"] <= metrics["loss/logprob_difference_max"]
    assert metrics["loss/ratio_max"] >= metrics["loss/ratio_mean"]


@pytest.mark.slow
def test_the_cut_changes_no_metric_of_the_loss() -> None:
    batch = games()
    one, many = (
        trainer(token_budget=budget).train(batch.tree, batch.entries, request(batch)) for budget in (9999, 40)
    )
    assert one["data/micro_batches"] == 1 < many["data/micro_batches"]
    for name in [name for name in one if name.startswith("loss/")]:
        assert many[name] == pytest.approx(one[name], rel=2e-4, abs=1e-6), name


@pytest.mark.slow
def test_the_gradient_is_clipped_and_reported_unclipped() -> None:
    batch = games()
    asked = request(batch)
    tight = asked.model_copy(update={"optimizer": asked.optimizer.model_copy(update={"max_grad_norm": 1e-9})})
    loose, clipped = trainer(), trainer()
    norms = [
        m.train(batch.tree, batch.entries, a)["loss/grad_norm"] for m, a in ((loose, asked), (clipped, tight))
    ]
    assert norms[0] == norms[1] > 1e-9
    # AdamW divides by the gradient's size, so only its epsilon lets a tiny gradient be seen.
    assert not same(weights(loose), weights(clipped))


@pytest.mark.slow
def test_scored_rows_agree_with_the_tree() -> None:
    made, batch = trainer(token_budget=50), games()
    for step in range(3):
        made.train(batch.tree, batch.entries, request(batch, step))
    rows = []
    for node in range(len(batch.tree)):
        path = [node]
        while batch.tree.parent_T[path[-1]] >= 0:
            path.append(int(batch.tree.parent_T[path[-1]]))
        rows.append(batch.tree.tokens_T[path[::-1]].tolist())
    scored = made.score(MODEL, [row for row in rows if len(row) > 1])
    last = {tuple(row): line[-1] for row, line in zip([r for r in rows if len(r) > 1], scored, strict=True)}
    assert all(
        len(line) == len(row) - 1 for row, line in zip([r for r in rows if len(r) > 1], scored, strict=True)
    )
    for micro in pack(batch.tree, batch.entries, 50).micro_batches:
        scores, _ = made.policy.entry_scores(micro)
        for entry, logprob in zip(micro.entry_E.tolist(), scores.logprobs_E.tolist(), strict=True):
            assert logprob == pytest.approx(last[tuple(rows[batch.entries.token_E[entry]])], abs=1e-5)


@pytest.mark.slow
def test_several_models_on_one_base_do_not_touch_each_other() -> None:
    alone = {}
    for number, name in enumerate(("p/one", "p/two")):
        made = Trainer(policy(), token_budget=64)
        made.open(name, LoraSpec(r=2 + number, dropout=0.1 * number), seed=number)
        for step in range(3):
            batch = games(10 * number + step)
            made.train(batch.tree, batch.entries, request(batch, step).model_copy(update={"model": name}))
        alone[name] = weights(made, name)
    both = Trainer(policy(), token_budget=64)
    for number, name in enumerate(alone):
        both.open(name, LoraSpec(r=2 + number, dropout=0.1 * number), seed=number)
    for step in range(3):
        for number, name in enumerate(alone):
            batch = games(10 * number + step)
            both.train(batch.tree, batch.entries, request(batch, step).model_copy(update={"model": name}))
            both.score("p/one", [[1, 2, 3]])
    assert all(same(alone[name], weights(both, name)) for name in alone)
    both.close("p/one")
    assert both.steps == {"p/two": 3}
    both.close("p/two")
    both.open("p/three", LoraSpec(r=2), seed=0)
    assert both.score("p/three", [[1, 2, 3]])[0] == pytest.approx(policy().row_logprobs([[1, 2, 3]])[0])


@pytest.mark.slow
def test_a_step_that_was_carried_forward_is_opened_without_another_adapter(tmp_path: Path) -> None:
    made, batch = trainer(), games(0)
    made.train(batch.tree, batch.entries, request(batch, 0))
    checkpoints = Checkpoints(tmp_path)
    made.save(MODEL, checkpoints.fresh_folder(1))
    checkpoints.commit(1)
    for step in (1, 2):
        checkpoints.carry_forward(step)
        checkpoints.commit(step + 1)
    held = made._open[MODEL]
    for step in (2, 3):
        assert made.open(MODEL, held.lora, checkpoint=checkpoints.path(step)) == step
        assert made._open[MODEL] is held and made.steps[MODEL] == step
    batch = games(3)
    trained = made.train(batch.tree, batch.entries, request(batch, 3))
    other = trainer()
    other.open(MODEL, held.lora, checkpoint=checkpoints.path(3))
    expected = other.train(batch.tree, batch.entries, request(batch, 3))
    assert trained["loss/train"] == expected["loss/train"] and same(weights(made), weights(other))
    assert made.open(MODEL, held.lora, checkpoint=checkpoints.path(3)) == 3
    assert made._open[MODEL] is not held, "its weights had moved since"


@pytest.mark.slow
def test_a_damaged_step_that_was_carried_forward_is_refused(tmp_path: Path) -> None:
    made = trainer()
    checkpoints = Checkpoints(tmp_path)
    made.save(MODEL, checkpoints.fresh_folder(0))
    checkpoints.commit(0)
    checkpoints.carry_forward(0)
    path = checkpoints.commit(1)
    (path / "optimizer.safetensors").unlink()
    (path / "optimizer.safetensors").write_bytes(b"something else")
    with pytest.raises(CheckpointError, match="optimizer"):
        made.open(MODEL, LoraSpec(r=4, alpha=8), checkpoint=path)
    assert made.steps[MODEL] == 0


def test_opening_again_starts_afresh() -> None:
    made, batch = trainer(), games()
    start = weights(made)
    made.train(batch.tree, batch.entries, request(batch))
    assert made.open(MODEL, LoraSpec(r=4, alpha=8), seed=0) == 0
    assert same(start, weights(made))


@pytest.mark.slow
def test_a_step_that_is_not_finite_changes_nothing() -> None:
    made, batch = trainer(), games()
    made.train(batch.tree, batch.entries, request(batch))
    before, moments = weights(made), _moments(made)
    bad = dataclasses.replace(batch.entries, advantage_E=np.full(len(batch.entries), 1e38, np.float32))
    with pytest.raises(TrainingError, match="the adapter was left as it was"):
        made.train(batch.tree, bad, request(batch, 1, learning_rate=1.0))
    assert same(before, weights(made)) and same(moments, _moments(made))
    assert made.steps == {MODEL: 1}
    other = trainer()
    other.train(batch.tree, batch.entries, request(batch))
    for one in (made, other):
        one.train(batch.tree, batch.entries, request(batch, 1))
    assert same(weights(made), weights(other))


def _moments(made: Trainer) -> dict[str, torch.Tensor]:
    model = made._open[MODEL]
    return {
        f"{name}.{key}": value.clone()
        for name, parameter in model.parameters.items()
        for key, value in model.optimizer.state[parameter].items()
    }


def test_what_cannot_be_trained_is_refused_before_anything_runs() -> None:
    made, batch = trainer(), games()
    before = weights(made)
    with pytest.raises(
        NotFoundError, match=r"'project/other' is not open in the trainer. Open: \['project/model'\]"
    ):
        made.train(batch.tree, batch.entries, request(batch).model_copy(update={"model": "project/other"}))
    with pytest.raises(TrainingError, match="is at step 0; this batch starts from step 3"):
        made.train(batch.tree, batch.entries, request(batch, 3))
    with pytest.raises(ConfigurationError, match="Unknown loss"):
        made.train(batch.tree, batch.entries, request(batch, name="nope"))
    huge = dataclasses.replace(batch.tree, tokens_T=batch.tree.tokens_T + VOCABULARY)
    with pytest.raises(TokenMismatchError, match=f"vocabulary has {VOCABULARY}"):
        made.train(huge, batch.entries, request(batch))
    with pytest.raises(TokenMismatchError, match=f"vocabulary has {VOCABULARY}"):
        made.score(MODEL, [[1, VOCABULARY]])
    with pytest.raises(ConfigurationError, match="at least two ids"):
        made.score(MODEL, [[1]])
    assert same(before, weights(made)) and made.steps == {MODEL: 0}


def test_the_state_file_is_plain_json(tmp_path: Path) -> None:
    made = trainer()
    made.save(MODEL, tmp_path / "0000")
    state = json.loads((tmp_path / "0000" / "trainer_state.json").read_text())
    assert bytes.fromhex(state["rng"]["cpu"]) == made._open[MODEL].rng["cpu"].numpy().tobytes()
