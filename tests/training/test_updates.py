"""Several updates in one step, and what becomes of AdamW's moments between kinds of training."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_policies import MODEL, games, ids_to, policy, qwen3, randomize

from art.batch.algorithms import resolve
from art.batch.batch_types import Batch, LossEntries
from art.errors import CheckpointError, TrainingError
from art.training.checkpoint import read_checkpoint
from art.training.step import BatchStep
from art.training.trainer import Trainer
from art.wire.algorithm import UpdatesSpec
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest

LORA = LoraSpec(r=3, alpha=6)
SFT = resolve("sft")


def trainer() -> Trainer:
    """In float64, with an adapter that does something."""
    made = Trainer(policy(qwen3(), dtype=torch.float64))
    made.open(MODEL, LORA, seed=1)
    randomize(made.parameters(MODEL))
    return made


def ask(batch: Batch, step: int, update: int = 0, *, last: bool = True, **changes: object) -> TrainRequest:
    fields = {
        "model": MODEL,
        "step": step,
        "update": update,
        "advance": last,
        "kind": "sft",
        "algorithm": SFT,
        "optimizer": OptimizerSpec(learning_rate=None),
        "rate": 1e-2,
        "normalizer": batch.normalizer,
    }
    return TrainRequest(**{**fields, **changes})


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in made.parameters(MODEL).items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.slow
def test_updates_of_one_step_are_the_steps_they_would_be() -> None:
    batches = [games(seed, groups=1, size=3) for seed in range(3)]
    one, steps = trainer(), trainer()
    for number, batch in enumerate(batches):
        rate = (number + 1) * 1e-2
        one.train(batch.tree, batch.entries, ask(batch, 0, number, last=number == 2, rate=rate))
        steps.train(batch.tree, batch.entries, ask(batch, number, rate=rate))
    assert one.steps == {MODEL: 1} and steps.steps == {MODEL: 3}
    assert equal(weights(one), weights(steps))


@pytest.mark.slow
def test_the_order_of_updates_is_kept_and_a_step_in_the_making_is_not_saved(tmp_path: Path) -> None:
    made, batch = trainer(), games(1)
    with pytest.raises(TrainingError, match="has had 0 updates of step 0; this batch is number 1"):
        made.train(batch.tree, batch.entries, ask(batch, 0, 1))
    made.save(MODEL, tmp_path / "0000")
    made.train(batch.tree, batch.entries, ask(batch, 0, last=False))
    assert made.steps == {MODEL: 0}
    with pytest.raises(TrainingError, match="has had 1 updates"):
        made.train(batch.tree, batch.entries, ask(batch, 0))
    with pytest.raises(CheckpointError, match="in the middle of step 1, after 1 updates"):
        made.save(MODEL, tmp_path / "0001")
    # Given up: the checkpoint is opened again, and the step begins anew.
    made.open(MODEL, LORA, checkpoint=tmp_path / "0000")
    made.train(batch.tree, batch.entries, ask(batch, 0, last=False))
    made.train(batch.tree, batch.entries, ask(batch, 0, 1))
    straight = trainer()
    straight.train(batch.tree, batch.entries, ask(batch, 0, last=False))
    straight.train(batch.tree, batch.entries, ask(batch, 0, 1))
    assert equal(weights(made), weights(straight)) and made.steps == {MODEL: 1}


def test_a_rate_of_zero_moves_nothing() -> None:
    made, batch = trainer(), games(2)
    before = weights(made)
    metrics = made.train(batch.tree, batch.entries, ask(batch, 0, rate=0.0))
    assert (
        equal(before, weights(made)) and metrics["loss/learning_rate"] == 0 and metrics["loss/grad_norm"] > 0
    )


def moments(made: Trainer) -> list[torch.Tensor]:
    return [state["exp_avg_sq"] for state in made._open[MODEL].optimizer.state.values()]


@pytest.mark.slow
@pytest.mark.parametrize("saved", [False, True])
def test_another_kind_of_training_begins_with_fresh_moments(tmp_path: Path, saved: bool) -> None:
    """After a supervised step, a step from rewards moves as the first one of a trainer with these weights."""
    made, batch = trainer(), games(3)
    made.train(batch.tree, batch.entries, ask(batch, 0))
    made.train(batch.tree, batch.entries, ask(batch, 1))
    counts = {int(state["step"]) for state in made._open[MODEL].optimizer.state.values()}
    assert counts == {2}, "of the same kind, moments go on"
    fresh = trainer()
    fresh.train(batch.tree, batch.entries, ask(batch, 0, kind="rl", rate=0.0))
    for name, one in fresh.parameters(MODEL).items():
        one.data.copy_(made.parameters(MODEL)[name])
    fresh._open[MODEL].optimizer.state.clear()
    if saved:
        made.save(MODEL, tmp_path / "0002")
        assert '"kind": "sft"' in (tmp_path / "0002" / "trainer_state.json").read_text()
        made.open(MODEL, LORA, checkpoint=tmp_path / "0002")
    made.train(batch.tree, batch.entries, ask(batch, 2, kind="rl"))
    fresh.train(batch.tree, batch.entries, ask(batch, 1, kind="rl"))
    assert equal(weights(made), weights(fresh))


def test_moments_are_back_when_the_first_step_of_another_kind_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made, batch = trainer(), games(4)
    made.train(batch.tree, batch.entries, ask(batch, 0))
    before = [one.clone() for one in moments(made)]

    def failing(*_: object) -> None:
        raise TrainingError("in the middle")

    monkeypatch.setattr(BatchStep, "begin_update", failing)
    with pytest.raises(TrainingError, match="in the middle"):
        made.train(batch.tree, batch.entries, ask(batch, 1, kind="rl"))
    assert all(torch.equal(one, other) for one, other in zip(before, moments(made), strict=True))


def test_a_checkpoint_without_a_kind_was_made_from_rewards(tmp_path: Path) -> None:
    """Checkpoints of earlier versions do not say it."""
    made = trainer()
    made.save(MODEL, tmp_path / "0000")
    fingerprint = made.policy.fingerprint
    state = read_checkpoint(tmp_path / "0000", base_model=made.policy.name, base_fingerprint=fingerprint)
    assert type(state).model_validate(state.model_dump(exclude={"kind"})).kind == "rl"


@pytest.mark.slow
def test_updates_are_those_of_plain_rows_in_transformers() -> None:
    """Two batches of cross entropy, AdamW and all, computed with the stock model, its own loss and torch."""
    batches = [games(seed, groups=2, size=2) for seed in (5, 6)]
    made = trainer()
    stock = trainer()
    parameters = list(stock.parameters(MODEL).values())
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0)
    for number, batch in enumerate(batches):
        told = made.train(batch.tree, batch.entries, ask(batch, 0, number, last=number == 1))
        stock._weights.activate(stock._open[MODEL].adapter, dropout=False)
        loss = _plain_loss(stock, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert told["loss/train"] == pytest.approx(loss.item(), rel=1e-9)
    for name, one in weights(made).items():
        assert torch.allclose(one, stock.parameters(MODEL)[name], rtol=1e-7, atol=1e-10), name


def _plain_loss(stock: Trainer, batch: Batch) -> torch.Tensor:
    """The mean over all trained tokens of -log p, each behind its own path, row by row."""
    total = torch.zeros((), dtype=torch.float64)
    for node in batch.entries.token_E.tolist():
        ids = torch.tensor([ids_to(batch.tree, node)])
        logits_V = stock.policy.causal_lm(input_ids=ids[:, :-1]).logits[0, -1]
        total = total - logits_V.log_softmax(-1)[ids[0, -1]]
    return total / len(batch.entries)


def test_the_batches_of_games_are_not_trivial() -> None:
    """What the comparisons above stand on: shared prefixes, several turns."""
    batch = games(5, groups=2, size=2)
    assert len(np.unique(batch.entries.token_E)) > 4 and int(batch.tree.depth_T.max()) > 4


def without_logprobs(batch: Batch, which_E: np.ndarray) -> LossEntries:
    logprob_E = np.where(which_E, np.float32("nan"), batch.entries.logprob_E)
    return dataclasses.replace(batch.entries, logprob_E=logprob_E)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cispo", "gspo", "ppo_critic"])
@pytest.mark.parametrize("minibatches", [1, 3])
def test_tokens_that_nobody_sampled_are_measured_by_the_trainer_s_own_logprobs(
    name: str, minibatches: int
) -> None:
    """As if the sampler had given exactly the logprobs that the trainer has before the first update."""
    batch = games(7, groups=2, size=3)
    algorithm = resolve(name).model_copy(update={"updates": UpdatesSpec(minibatches=minibatches)})
    given_E = np.arange(len(batch.entries)) % 3 == 0
    own_E = first_logprobs(batch)
    exact = dataclasses.replace(
        batch.entries, logprob_E=np.where(given_E, own_E, batch.entries.logprob_E).astype(np.float32)
    )
    one, other = trainer(), trainer()
    changes = {"kind": "rl", "algorithm": algorithm}
    told = one.train(batch.tree, without_logprobs(batch, given_E), ask(batch, 0, **changes))
    other.train(batch.tree, exact, ask(batch, 0, **changes))
    for parameter, value in weights(one).items():
        assert torch.allclose(value, weights(other)[parameter], rtol=1e-4, atol=1e-6), parameter
    assert told["loss/logprob_difference_max"] > 0


def first_logprobs(batch: Batch) -> np.ndarray:
    made = trainer()
    rows = []
    for node in batch.entries.token_E.tolist():
        path, at = [], node
        while at >= 0:
            path.append(int(batch.tree.tokens_T[at]))
            at = int(batch.tree.parent_T[at])
        rows.append(path[::-1])
    return np.array([scores[-1] for scores in made.score(MODEL, rows)])


def test_nothing_is_compared_with_a_sampler_that_was_not_there() -> None:
    batch = games(8, groups=2, size=3)
    every = np.ones(len(batch.entries), bool)
    told = trainer().train(batch.tree, without_logprobs(batch, every), ask(batch, 0, kind="rl"))
    assert not [name for name in told if "ratio" in name or "difference" in name] and told["loss/train"]
