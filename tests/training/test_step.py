"""A step is the same whatever way it takes: cut sequences, minibatches, passes before the first update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tiny_policies import MODEL, causal_lm, games, ids_to, policy, qwen3, randomize

from art.batch.algorithms import resolve
from art.batch.batch_types import Batch
from art.errors import TrainingError
from art.training.attention.interface import NAME
from art.training.losses.registry import make_loss
from art.training.minibatches import make_columns, minibatches, normalizer_of, take_entries
from art.training.policy import Policy
from art.training.trainer import Trainer
from art.wire.algorithm import (
    AdvantageSpec,
    AggregationSpec,
    Algorithm,
    CriticSpec,
    KlSpec,
    LossSpec,
    TeacherSpec,
    UpdatesSpec,
)
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest

LORA = LoraSpec(r=3, alpha=6)
Weights = dict[str, torch.Tensor]


def trainer(budget: int = 8192) -> Trainer:
    """In float64, with an adapter that does something."""
    made = Trainer(policy(qwen3(), dtype=torch.float64), token_budget=budget)
    made.open(MODEL, LORA, seed=1)
    randomize(made.parameters(MODEL))
    return made


def asked(batch: Batch, algorithm: Algorithm, step: int = 0, **changes: Any) -> TrainRequest:
    optimizer = OptimizerSpec(learning_rate=1e-2, max_grad_norm=1e9, eps=1e-3)
    parts = {"model": MODEL, "step": step, "optimizer": optimizer, "normalizer": batch.normalizer}
    return TrainRequest(**{**parts, "algorithm": algorithm, **changes})


def weights(made: Trainer) -> Weights:
    return {name: one.detach().clone() for name, one in made.parameters(MODEL).items()}


def after(batch: Batch, algorithm: Algorithm, budget: int = 8192, **changes: Any) -> Weights:
    made = trainer(budget)
    made.train(batch.tree, batch.entries, asked(batch, algorithm, **changes))
    return weights(made)


def distance(one: Weights, other: Weights) -> float:
    """The largest relative difference of any tensor."""
    return max(float((one[name] - value).norm() / value.norm()) for name, value in other.items())


def logprobs(made: Trainer, batch: Batch) -> torch.Tensor:
    packing = made.policy.pack(batch.tree, batch.entries, 8192)
    (micro,) = packing.micro_batches
    with torch.no_grad():
        scores, _ = made.policy.entry_scores(micro)
    result = torch.empty(len(batch.entries), dtype=torch.float64)
    result[torch.as_tensor(micro.entry_E)] = scores.logprobs_E
    return result


GSPO = Algorithm(
    loss=LossSpec(name="ppo"), ratio="sequence", aggregation=AggregationSpec(kind="sequence_mean")
)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [20, 35, 60])
def test_sequences_that_are_cut_are_trained_as_if_they_were_not(budget: int) -> None:
    batch = games(7, groups=2, size=4, turns=4)
    assert distance(after(batch, GSPO, budget), after(batch, GSPO)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("own_norm", "most"), [(False, 1e-12), (True, 1e-6)])
def test_another_cut_changes_a_step_by_what_the_norms_round(own_norm: bool, most: float) -> None:
    """transformers' RMSNorm computes in float32 whatever the model: docs/internals/data-parallel.md."""
    moves = []
    for budget in (28, 8192):
        model = causal_lm(qwen3(), NAME, torch.float64, own_norm=own_norm)
        made = Trainer(Policy(model, name="tiny", block=8, long=6), token_budget=budget)
        made.open(MODEL, LORA, seed=1)
        randomize(made.parameters(MODEL))
        before = weights(made)
        for step in range(2):
            batch = games(2 + step, groups=4)
            made.train(batch.tree, batch.entries, asked(batch, resolve("art"), step=step))
        moves.append(torch.cat([(one - before[name]).flatten() for name, one in weights(made).items()]))
    assert (moves[0] - moves[1]).norm() <= most * moves[1].norm()


@pytest.mark.slow
def test_branching_sequences_take_two_passes() -> None:
    """Rollouts whose turns do not extend each other lie on several paths, and small budgets cut them."""
    batch = games(8, groups=2, size=3, turns=4)
    ids = np.arange(len(batch.entries)) % 2  # entries of every path belong to both sequences
    entries = take_entries(batch.entries, np.arange(len(batch.entries)))
    object.__setattr__(entries, "sequence_E", ids.astype(np.int32))
    made = trainer(20)
    packing = made.policy.pack(batch.tree, entries, 20, whole_sequences=True)
    assert packing.cut_sequences > 0
    made.train(batch.tree, entries, asked(batch, GSPO))
    whole = trainer()
    whole.train(batch.tree, entries, asked(batch, GSPO))
    assert distance(weights(made), weights(whole)) < 1e-9


def test_minibatches_deal_out_every_rollout_once_an_epoch() -> None:
    batch = games(9, groups=3, size=4)
    torch.manual_seed(0)
    rows = minibatches(batch.entries, UpdatesSpec(minibatches=5, epochs=2))
    assert len(rows) == 10
    for epoch in (rows[:5], rows[5:]):
        assert sorted(np.concatenate(epoch).tolist()) == list(range(len(batch.entries)))
        owners = [set(batch.entries.sequence_E[one].tolist()) for one in epoch]
        assert (
            sum(map(len, owners)) == len(set().union(*owners)) == len(set(batch.entries.sequence_E.tolist()))
        )
    assert [one.tolist() for one in rows[:5]] != [one.tolist() for one in rows[5:]]


@pytest.mark.parametrize("kind", ["token_mean", "sequence_mean", "constant"])
def test_a_minibatch_s_loss_is_the_mean_over_itself(kind: str) -> None:
    batch = games(10, groups=2, size=4)
    length = 50 if kind == "constant" else None
    algorithm = Algorithm(aggregation=AggregationSpec(kind=kind, length=length))
    rollouts, lengths = np.unique(batch.entries.sequence_E, return_counts=True)
    rows = np.flatnonzero(batch.entries.sequence_E < 3)
    if kind == "sequence_mean":
        weight_E = (1.0 / lengths)[batch.entries.sequence_E].astype(np.float32)
        object.__setattr__(batch.entries, "weight_E", weight_E)
    whole = {"token_mean": len(batch.entries), "sequence_mean": len(rollouts), "constant": 50 * len(rollouts)}
    mine = {"token_mean": len(rows), "sequence_mean": 3, "constant": 150}
    found = normalizer_of(batch.entries, rows, float(whole[kind]), algorithm)
    assert found == pytest.approx(mine[kind], rel=1e-6)


def test_a_constant_divisor_is_shared_by_the_weights_of_the_groups() -> None:
    batch = games(10, groups=2, size=4)
    weight_E = np.where(batch.entries.sequence_E < 2, 3.0, 1.0).astype(np.float32)
    object.__setattr__(batch.entries, "weight_E", weight_E)
    rollouts = len(np.unique(batch.entries.sequence_E))
    rows = np.flatnonzero(batch.entries.sequence_E < 3)
    algorithm = Algorithm(aggregation=AggregationSpec(kind="constant", length=50))
    found = normalizer_of(batch.entries, rows, 50.0 * (rollouts + 4), algorithm)
    assert found == pytest.approx(50 * (3 + 3 + 1), rel=1e-6)


@pytest.mark.slow
def test_two_epochs_are_two_updates_with_the_ratio_to_the_policy_before_them() -> None:
    """Against a loop of its own: twice gradient and AdamW, the ratio to the first logprobs."""
    batch = games(11, groups=2, size=3)
    algorithm = Algorithm(loss=LossSpec(name="ppo"), ratio_to="trainer", updates=UpdatesSpec(epochs=2))
    made = trainer()
    before = logprobs(made, batch)
    parameters = list(made.parameters(MODEL).values())
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.99), eps=1e-3, weight_decay=0.0)
    (micro,) = made.policy.pack(batch.tree, batch.entries, 8192).micro_batches
    columns = make_columns(batch.entries, dtype=torch.float64, device="cpu")
    columns.proximal_E = before
    for _ in range(2):
        scores, _ = made.policy.entry_scores(micro)
        inputs = columns.inputs(scores.logprobs_E, micro.entry_E, normalizer=batch.normalizer)
        make_loss(algorithm)(inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert distance(after(batch, algorithm), weights(made)) < 1e-9


@pytest.mark.slow
def test_one_update_with_the_ratio_to_the_trainer_is_reinforce() -> None:
    batch = games(12, groups=2, size=3)
    object.__setattr__(batch.entries, "logprob_E", batch.entries.logprob_E * 0 - 4.0)  # a far sampler
    to_trainer = after(batch, Algorithm(loss=LossSpec(name="ppo"), ratio_to="trainer"))
    made = trainer()
    object.__setattr__(batch.entries, "logprob_E", logprobs(made, batch).float().numpy())
    on_policy = after(batch, Algorithm(loss=LossSpec(name="ppo")))
    assert distance(to_trainer, on_policy) < 1e-5  # the ledger keeps float32


def base_logprobs(batch: Batch) -> torch.Tensor:
    made = Trainer(policy(qwen3(), dtype=torch.float64))
    made.open(MODEL, LORA, seed=1)  # B is zero: the base itself
    return logprobs(made, batch)


def with_advantages(batch: Batch, change: Callable[[np.ndarray], Any]) -> Batch:
    object.__setattr__(
        batch.entries, "advantage_E", np.asarray(change(batch.entries.advantage_E), np.float32)
    )
    return batch


@pytest.mark.slow
@pytest.mark.parametrize("source", ["policy", "sampler"])
@pytest.mark.parametrize("place", ["advantage", "shaped_advantage"])
def test_a_kl_in_the_advantage_is_the_difference_to_the_base(place: str, source: str) -> None:
    algorithm = Algorithm(kl=KlSpec(estimator="k1", coefficient=0.3, place=place, source=source))
    batch = games(13, groups=2, size=3)
    drawn = torch.tensor(batch.entries.logprob_E)
    kl_E = ((drawn if source == "sampler" else logprobs(trainer(), batch)) - base_logprobs(batch)).numpy()
    penalty_E = 0.3 * (kl_E - (kl_E.mean() if place == "shaped_advantage" else 0.0))
    by_hand = after(with_advantages(games(13, groups=2, size=3), lambda a: a - penalty_E), Algorithm())
    assert distance(after(batch, algorithm), by_hand) < 1e-5  # advantages are float32 on the wire


@pytest.mark.slow
def test_distillation_from_the_base_moves_towards_it() -> None:
    algorithm = Algorithm(
        advantage=AdvantageSpec(kind="distillation"),
        loss=LossSpec(name="importance_sampling"),
        teacher=TeacherSpec(kind="base"),
    )
    batch = games(14, groups=2, size=3)
    target = base_logprobs(batch)
    made = trainer()
    object.__setattr__(batch.entries, "logprob_E", logprobs(made, batch).clamp(max=0).float().numpy())
    distances = []
    for step in range(6):
        distances.append(float((logprobs(made, batch) - target).abs().mean()))
        made.train(batch.tree, batch.entries, asked(batch, algorithm, step))
    assert distances[-1] < 0.8 * distances[0]


@pytest.mark.slow
def test_a_critic_learns_the_return_and_survives_a_restart(tmp_path: Any) -> None:
    algorithm = Algorithm(
        advantage=AdvantageSpec(kind="gae", lam=0.95),
        loss=LossSpec(name="ppo"),
        critic=CriticSpec(learning_rate=3e-2, clip=None),
    )
    batch = with_advantages(games(15, groups=2, size=3), lambda a: np.ones_like(a))
    made, losses = trainer(), []
    for step in range(8):
        losses.append(made.train(batch.tree, batch.entries, asked(batch, algorithm, step))["loss/value"])
        if step == 3:
            made.save(MODEL, tmp_path / "4")
    assert losses[-1] < 0.5 * losses[0]
    again = Trainer(policy(qwen3(), dtype=torch.float64))
    again.open(MODEL, LORA, checkpoint=tmp_path / "4")
    for step in range(4, 8):
        resumed = again.train(batch.tree, batch.entries, asked(batch, algorithm, step))
    assert resumed["loss/value"] == losses[-1]
    assert all(torch.equal(one, weights(made)[name]) for name, one in weights(again).items())


@pytest.mark.slow
def test_a_step_that_fails_after_its_first_update_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = games(16, groups=2, size=3)
    algorithm = Algorithm(loss=LossSpec(name="ppo"), ratio_to="trainer", updates=UpdatesSpec(epochs=3))
    made = trainer()
    made.train(batch.tree, batch.entries, asked(batch, algorithm))
    before, calls = weights(made), []
    whole = Policy.entry_scores

    def failing(self: Policy, *given: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise TrainingError("in the middle")
        return whole(self, *given, **options)

    monkeypatch.setattr(Policy, "entry_scores", failing)
    with pytest.raises(TrainingError, match="in the middle"):
        made.train(batch.tree, batch.entries, asked(batch, algorithm, 1))
    assert all(torch.equal(one, weights(made)[name]) for name, one in before.items())
    monkeypatch.undo()
    made.train(batch.tree, batch.entries, asked(batch, algorithm, 1))
    other = trainer()
    for step in range(2):
        other.train(batch.tree, batch.entries, asked(batch, algorithm, step))
    assert all(torch.equal(one, weights(other)[name]) for name, one in weights(made).items())


@pytest.mark.slow
def test_supervised_training_is_the_cross_entropy_of_transformers() -> None:
    """Token mean over the completions, against the stock model's own `labels`."""
    batch = with_advantages(games(17, groups=2, size=3), np.ones_like)
    made = trainer()
    loss = made.train(batch.tree, batch.entries, asked(batch, resolve("sft")))["loss/train"]
    stock = trainer().policy.causal_lm  # the same adapter, through the stock forward
    total = torch.zeros((), dtype=torch.float64)
    for node in batch.entries.token_E.tolist():
        ids = torch.tensor([ids_to(batch.tree, node)])
        labels = torch.full_like(ids, -100)
        labels[0, -1] = ids[0, -1]
        with torch.no_grad():
            total += stock(input_ids=ids, labels=labels).loss
    assert loss == pytest.approx(float(total) / len(batch.entries), rel=1e-7)  # theirs is float32


def test_the_rate_is_the_literature_s_where_none_is_given_and_follows_its_schedule() -> None:
    batch, rates = games(18, groups=2, size=3), []
    made = trainer()
    spec = OptimizerSpec(learning_rate=None, warmup_steps=1, schedule="linear", total_steps=3)
    for step in range(3):
        request = asked(batch, Algorithm(), step, optimizer=spec)
        rates.append(made.train(batch.tree, batch.entries, request)["loss/learning_rate"])
    hidden = made.policy.causal_lm.config.hidden_size
    full = 5e-5 * 10 * (2000 / hidden) ** 0.0775
    assert rates == pytest.approx([full / 2, full, full / 2])


@pytest.mark.slow
def test_a_gradient_that_ran_out_of_memory_is_made_again_with_half_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The allocator's error is raised by hand here; test_out_of_memory.py has a real one."""
    batch, budgets = games(19, groups=2, size=4, turns=4), []
    whole = Policy.pack

    def packing(self: Policy, tree: Any, entries: Any, budget: int, **options: Any) -> Any:
        budgets.append(budget)
        return whole(self, tree, entries, budget, **options)

    calls: list[int] = []
    scores = Policy.entry_scores

    def failing(self: Policy, *given: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
        return scores(self, *given, **options)

    made = trainer(64)
    monkeypatch.setattr(Policy, "pack", packing)
    monkeypatch.setattr(Policy, "entry_scores", failing)
    metrics = made.train(batch.tree, batch.entries, asked(batch, Algorithm()))
    assert budgets == [64, 32]
    monkeypatch.undo()
    other = trainer(32)
    expected = other.train(batch.tree, batch.entries, asked(batch, Algorithm()))
    assert distance(weights(made), weights(other)) < 1e-12
    timing = {"time/step_trainer_s", "memory/planned_mb", "memory/peak_mb"}
    assert {k: metrics[k] for k in metrics.keys() - timing} == pytest.approx(
        {k: expected[k] for k in expected.keys() - timing}, rel=1e-12
    )


def test_both_passes_of_a_cut_sequence_draw_the_same_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = games(20, groups=2, size=3, turns=4)
    entries = take_entries(batch.entries, np.arange(len(batch.entries)))
    ids = np.arange(len(entries)) % 2
    object.__setattr__(entries, "sequence_E", ids.astype(np.int32))
    made = Trainer(policy(qwen3(), dtype=torch.float64), token_budget=20)
    made.open(MODEL, LoraSpec(r=3, alpha=6, dropout=0.4), seed=1)
    randomize(made.parameters(MODEL))
    seen: dict[bool, list[torch.Tensor]] = {True: [], False: []}
    whole = Policy.entry_scores

    def watched(self: Policy, *given: Any, **options: Any) -> Any:
        scores, plan = whole(self, *given, **options)
        seen[torch.is_grad_enabled()].append(scores.logprobs_E.detach())
        return scores, plan

    monkeypatch.setattr(Policy, "entry_scores", watched)
    made.train(batch.tree, entries, asked(batch, GSPO))
    assert len(seen[True]) == len(seen[False]) > 1
    assert all(torch.equal(one, other) for one, other in zip(seen[True], seen[False], strict=True))
