"""Gradients of several adapters in one pass: each is that of its run alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tiny_policies import games, policy, qwen3, randomize

from art.batch.algorithms import resolve
from art.batch.batch_types import Batch
from art.errors import TrainingError
from art.training.lora_product import NotSharedError
from art.training.trainer import AskedBatch, Trainer
from art.training.trainer_app import TrainerJob, WaitingJobs
from art.wire.algorithm import EntropySpec
from art.wire.training import LoraSpec, OptimizerSpec, SamplingSpec, StepRequest, TrainEvent, TrainRequest

RANKS = (4, 8, 16, 32, 64)
ADAM = OptimizerSpec(learning_rate=None, max_grad_norm=1e30)
LOSSES = ("importance_sampling", "dual_clip", "cispo", "gmpo", "reinforce")


def trainer(
    adapters: int,
    dtype: torch.dtype = torch.float64,
    *,
    dropout: float = 0.0,
    token_budget: int = 4096,
    **more,
) -> Trainer:
    """Adapters of ranks from 4 to 64 that do something, of which every third adapts attention alone."""
    made = Trainer(policy(qwen3(), dtype=dtype), token_budget=token_budget, **more)
    for number in range(adapters):
        targets = ["q_proj", "v_proj"] if number % 3 == 2 else "all-linear"
        rank = RANKS[number % len(RANKS)]
        made.open(f"m{number}", LoraSpec(r=rank, alpha=16, targets=targets, dropout=dropout), seed=number)
        randomize(made.parameters(f"m{number}"), number)
    return made


def asked(number: int, batch: Batch, *, update: int = 0, loss: str = "", **more: object) -> AskedBatch:
    request = TrainRequest(
        model=f"m{number}",
        step=0,
        update=update,
        **{"gradient": "add", "algorithm": resolve(loss or LOSSES[number % len(LOSSES)]), **more},
        optimizer=ADAM,
        normalizer=1.0,
        sampling=list(batch.sampling),
    )
    return AskedBatch(batch.tree, batch.entries, request, lambda done, total: None)


def gradient(made: Trainer, number: int) -> torch.Tensor:
    found = made.parameters(f"m{number}").values()
    return torch.cat([torch.zeros(one.numel()) if one.grad is None else one.grad.flatten() for one in found])


def error(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-13), (torch.float32, 1e-6)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("token_budget", [4096, 64], ids=["one pass", "several passes"])
def test_each_gradient_is_that_of_its_run_alone(dtype: torch.dtype, limit: float, token_budget: int) -> None:
    """16 adapters of ranks 4 to 64, five losses, two rounds: the second adds to the first."""
    together, alone = (trainer(16, dtype, token_budget=token_budget) for _ in range(2))
    for update in range(2):
        batches = [asked(n, games(20 * update + n, groups=1 + n % 2), update=update) for n in range(16)]
        found = together.train_together(batches)
        expected = [alone.train(*batch) for batch in batches]
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert error(gradient(together, number), gradient(alone, number)) < limit
            assert one["loss/train"] == pytest.approx(other["loss/train"], rel=1e-4)
            assert one["data/forwarded_tokens"] == other["data/forwarded_tokens"]
            assert one.keys() == other.keys()
            columns, expected_columns = (t.token_columns(f"m{number}", 0) for t in (together, alone))
            for name, column in expected_columns.items():
                np.testing.assert_allclose(columns[name], column, rtol=1e-4, atol=1e-5, err_msg=name)
    for number in range(16):
        request = StepRequest(model=f"m{number}", step=0, batches=2, optimizer=ADAM, rate=1e-3)
        assert together.step(request).grad_norm == pytest.approx(alone.step(request).grad_norm, rel=1e-5)


def test_one_that_is_only_scored_learns_nothing_beside_others() -> None:
    together, alone = trainer(3), trainer(3)
    batches = [asked(n, games(n), gradient="none" if n == 1 else "add") for n in range(3)]
    together.train_together(batches)
    for batch in batches:
        alone.train(*batch)
    assert not gradient(together, 1).any()
    assert all(error(gradient(together, n), gradient(alone, n)) < 1e-13 for n in (0, 2))
    scored, expected = (one.token_columns("m1", 0)["logprob"] for one in (together, alone))
    np.testing.assert_allclose(scored, expected, rtol=1e-6)


@pytest.mark.parametrize("tempered", [(), (1,)], ids=["all plain", "one drawn at a temperature"])
@pytest.mark.parametrize("with_bonus", [(), (2,), (0, 1, 2, 3)], ids=["no bonus", "one", "all"])
def test_what_batches_want_of_the_output_layer_is_each_ones_own(
    tempered: Sequence[int], with_bonus: Sequence[int]
) -> None:
    together, alone = trainer(4), trainer(4)
    batches = []
    for number in range(4):
        tree, entries, request, progress = asked(number, games(number))
        changed: dict[str, object] = {}
        if number in tempered:
            changed["sampling"] = [SamplingSpec(temperature=0.7)]
        if number in with_bonus:
            bonus = EntropySpec(coefficient=0.1 + number)
            changed["algorithm"] = request.algorithm.model_copy(update={"entropy": bonus})
        batches.append(AskedBatch(tree, entries, request.model_copy(update=changed), progress))
    found = together.train_together(batches)
    for number, (batch, one) in enumerate(zip(batches, found, strict=True)):
        other = alone.train(*batch)
        assert error(gradient(together, number), gradient(alone, number)) < 1e-12
        assert one["loss/train"] == pytest.approx(other["loss/train"], rel=1e-9)
        assert one["loss/entropy"] == pytest.approx(other["loss/entropy"], rel=1e-9)
        columns, expected = (made.token_columns(f"m{number}", 0) for made in (together, alone))
        for name, column in expected.items():
            np.testing.assert_allclose(columns[name], column, rtol=1e-5, atol=1e-6, err_msg=name)


def test_layers_that_are_computed_twice_give_the_same() -> None:
    together, alone = trainer(4, checkpointing="on"), trainer(4)
    batches = [asked(n, games(n)) for n in range(4)]
    together.train_together(batches)
    for number, batch in enumerate(batches):
        alone.train(*batch)
        assert error(gradient(together, number), gradient(alone, number)) < 1e-13


def test_a_batch_that_is_refused_leaves_every_gradient_as_it_was() -> None:
    """The loss of one is not finite: the others are then computed without it."""
    made = trainer(3)
    for number in range(3):
        made.train(*asked(number, games(number)))
    before = [gradient(made, number).clone() for number in range(3)]
    batches = [asked(number, games(number), update=1) for number in range(3)]
    batches[1].entries.advantage_E[:] = np.inf
    with pytest.raises(NotSharedError, match="not finite"):
        made.train_together(batches)
    assert all(torch.equal(gradient(made, n), one) for n, one in enumerate(before))
    for number in (0, 2):
        made.train(*batches[number])
    with pytest.raises(TrainingError, match="not finite"):
        made.train(*batches[1])
    assert torch.equal(gradient(made, 1), before[1])


@pytest.mark.parametrize(
    ("options", "fields", "why"),
    [
        ({"dropout": 0.1}, {}, "cannot compute beside others"),
        ({}, {"loss": "ppo_critic"}, "several passes"),
        ({}, {"update": 1}, "gradients of 0 batches"),
    ],
    ids=["dropout", "a critic", "a place that is not theirs"],
)
def test_what_needs_a_pass_of_its_own_says_so(
    options: dict[str, float], fields: dict[str, object], why: str
) -> None:
    made = trainer(2, **options)
    with pytest.raises(NotSharedError, match=why):
        made.train_together([asked(number, games(number, turns=5), **fields) for number in range(2)])
    assert not gradient(made, 0).any()


def test_sequences_that_are_cut_need_two_passes() -> None:
    batch = games(8, groups=2, size=3, turns=4)
    for number in range(2):  # entries of every path belong to both sequences
        batch.entries.sequence_E[number::2] = number
    made = trainer(2, token_budget=20)
    with pytest.raises(NotSharedError, match="several passes"):
        made.train_together([asked(number, batch, loss="gmpo") for number in range(2)])
    trainer(2).train_together([asked(number, batch, loss="gmpo") for number in range(2)])


def test_all_weights_compute_alone() -> None:
    made = trainer(1)
    made.open("m1", None)
    with pytest.raises(NotSharedError, match="beside others"):
        made.train_together([asked(number, games(number)) for number in range(2)])
    made.train(*asked(1, games(1)))
    assert gradient(made, 1).any()


def test_the_adapter_that_was_active_before_computes_afterwards() -> None:
    made, rows = trainer(3), [[1, 2, 3, 4]]
    before = [made.score(f"m{number}", rows) for number in range(3)]
    made.train_together([asked(number, games(number)) for number in range(3)])
    assert [made.score(f"m{number}", rows) for number in range(3)] == before
    assert before[0] != before[1] != before[2]


async def answered(waiting: WaitingJobs, made: Trainer, *batches: AskedBatch) -> list[TrainEvent]:
    """Batches that wait while the trainer is busy: their last events."""
    jobs = [TrainerJob(batch.request, digest="") for batch in batches]
    for job, batch in zip(jobs, batches, strict=True):
        waiting.add(job, batch.tree, batch.entries)
    for _ in jobs:
        await asyncio.to_thread(waiting.run_next, made)
    found = [[json.loads(line) async for line in job.lines()] for job in jobs]
    return [TrainEvent.model_validate(lines[-1]) for lines in found]


class CountingTrainer(Trainer):
    """Notes the models of each pass."""

    passes: list[list[str]]

    def train_together(self, batches: Sequence[AskedBatch]) -> list[dict[str, float]]:
        self.passes.append([batch.request.model for batch in batches])
        return super().train_together(batches)

    def train(self, *arguments: Any) -> dict[str, float]:
        self.passes.append([arguments[2].model])
        return super().train(*arguments)


def counting(adapters: int) -> CountingTrainer:
    made = CountingTrainer(policy(qwen3(), dtype=torch.float64))
    made.passes = []
    for number in range(adapters):
        made.open(f"m{number}", LoraSpec(r=2, alpha=4), seed=number)
    return made


async def test_batches_that_wait_share_a_pass_one_of_each_model_up_to_one_that_moves_weights() -> None:
    made = counting(4)
    batches = [asked(n, games(n)) for n in (0, 1, 2)]
    batches += [
        asked(0, games(7), update=1),
        asked(3, games(3), gradient="step"),
        asked(1, games(8), update=1),
    ]
    events = await answered(WaitingJobs(shared_passes=True), made, *batches)
    assert made.passes == [["m0", "m1", "m2"], ["m0"], ["m3"], ["m1"]]
    assert [event.type for event in events] == ["result"] * 6
    assert [event.step for event in events] == [0, 0, 0, 0, 1, 0]


async def test_a_bad_batch_in_a_shared_pass_fails_alone() -> None:
    made = counting(3)
    batches = [asked(number, games(number)) for number in range(3)]
    batches[1].entries.advantage_E[:] = np.nan
    events = await answered(WaitingJobs(shared_passes=True), made, *batches)
    assert made.passes == [["m0", "m1", "m2"], ["m0"], ["m1"], ["m2"]]
    assert [event.type for event in events] == ["result", "error", "result"]
    assert "not finite" in events[1].message


async def test_with_turns_each_is_to_the_last_bit_what_it_is_alone() -> None:
    made, alone = counting(3), counting(3)
    batches = [asked(number, games(number)) for number in range(3)]
    await answered(WaitingJobs(shared_passes=False), made, *batches)
    assert made.passes == [["m0"], ["m1"], ["m2"]]
    for number, batch in enumerate(batches):
        alone.train(*batch)
        assert torch.equal(gradient(made, number), gradient(alone, number))


async def test_a_defect_in_a_shared_pass_leaves_no_reader_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(made: Trainer, batches: Sequence[AskedBatch]) -> list[dict[str, float]]:
        raise KeyError("a defect")

    made = counting(2)
    monkeypatch.setattr(CountingTrainer, "train_together", broken)
    events = await answered(WaitingJobs(shared_passes=True), made, *(asked(n, games(n)) for n in range(2)))
    assert made.passes == [["m0"], ["m1"]] and [event.type for event in events] == ["result"] * 2
