"""Gradients batch by batch and the update apart: what they add up to, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_policies import MODEL, games, policy, qwen3, randomize

from art.batch.algorithms import resolve
from art.batch.batch_types import Batch
from art.errors import GradientsLostError, TrainingError
from art.training.trainer import Trainer
from art.wire.algorithm import Algorithm
from art.wire.training import LoraSpec, OptimizerSpec, StepRequest, TrainRequest

LORA = LoraSpec(r=3, alpha=6)
ADAM = OptimizerSpec(learning_rate=None, betas=(0.9, 0.95), eps=1e-12, max_grad_norm=1e30)


def trainer(token_budget: int = 64) -> Trainer:
    """In float64, with an adapter that does something."""
    made = Trainer(policy(qwen3(), dtype=torch.float64), token_budget=token_budget)
    made.open(MODEL, LORA, seed=1)
    randomize(made.parameters(MODEL))
    return made


def asked(
    batch: Batch, update: int, *, step: int = 0, algorithm: Algorithm | None = None, **more: object
) -> TrainRequest:
    fields = {
        "model": MODEL,
        "step": step,
        "update": update,
        "gradient": "add",
        "algorithm": algorithm or resolve("importance_sampling"),
        "optimizer": ADAM,
        "normalizer": 1.0,
        "sampling": list(batch.sampling),
    }
    return TrainRequest(**{**fields, **more})


def add(made: Trainer, batch: Batch, update: int, **more: object) -> dict[str, float]:
    return made.train(batch.tree, batch.entries, asked(batch, update, **more))


def step(
    made: Trainer, batches: int, *, at: int = 0, rate: float = 1e-2, optimizer: OptimizerSpec = ADAM
) -> float:
    request = StepRequest(model=MODEL, step=at, batches=batches, optimizer=optimizer, rate=rate)
    return made.step(request).grad_norm


def flat(made: Trainer, *, gradient: bool = False) -> torch.Tensor:
    found = made.parameters(MODEL).values()
    return torch.cat([(one.grad if gradient else one.detach()).flatten() for one in found])


def near(one: torch.Tensor, other: torch.Tensor, limit: float = 1e-10) -> bool:
    return float((one - other).norm() / other.norm()) <= limit


@pytest.mark.slow
def test_batches_and_a_step_equal_plain_torch_and_adam() -> None:
    """The loss is a sum over tokens: sum of -exp(log p - log q) A, row by row through the stock model."""
    made, plain = trainer(), trainer()
    batches = [games(seed, groups=1, size=3) for seed in range(3)]
    plain._weights.activate(plain._open[MODEL].adapter, dropout=False)
    parameters = list(plain.parameters(MODEL).values())
    adam = torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
    for round_ in range(2):
        for number, batch in enumerate(batches):
            add(made, batch, number, step=round_)
            plain_loss(plain, batch).backward()
        assert near(flat(made, gradient=True), flat(plain, gradient=True))
        step(made, 3, at=round_)
        adam.step()
        adam.zero_grad()
    assert near(flat(made), flat(plain)) and made.steps == {MODEL: 2}


def plain_loss(made: Trainer, batch: Batch) -> torch.Tensor:
    """Every sequence of the tree forwarded alone."""
    tree, entries, total = batch.tree, batch.entries, torch.zeros((), dtype=torch.float64)
    for node, sampled, advantage, weight in zip(
        entries.token_E, entries.logprob_E, entries.advantage_E, entries.weight_E, strict=True
    ):
        path, at = [], int(node)
        while at >= 0:
            path.append(int(tree.tokens_T[at]))
            at = int(tree.parent_T[at])
        ids = torch.tensor([path[::-1]])
        logits = made.policy.causal_lm(input_ids=ids[:, :-1]).logits[0, -1].double()
        logprob = logits.log_softmax(-1)[ids[0, -1]]
        total = total - (logprob - float(sampled)).exp() * float(advantage) * float(weight)
    return total


@pytest.mark.slow
def test_any_mix_of_losses_adds_up() -> None:
    """Two losses on two batches: the sum of both gradients, in any order."""
    batches, losses = [games(seed, groups=1) for seed in (4, 5)], ("dapo", "reinforce")
    alone = []
    for batch, name in zip(batches, losses, strict=True):
        made = trainer()
        add(made, batch, 0, algorithm=resolve(name))
        alone.append(flat(made, gradient=True).clone())
    for order in ((0, 1), (1, 0)):
        made = trainer()
        for number, which in enumerate(order):
            add(made, batches[which], number, algorithm=resolve(losses[which]))
        assert near(flat(made, gradient=True), alone[0] + alone[1])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["importance_sampling", "gspo"])
def test_only_scored_leaves_nothing_but_logprobs(algorithm: str) -> None:
    """Cut sequences too: GSPO looks at whole ones."""
    made, batch = trainer(token_budget=8), games(6)
    add(made, batch, 0, algorithm=resolve(algorithm))
    held = flat(made, gradient=True).clone()
    with_gradient = made.token_columns(MODEL, 0)["logprob"]
    metrics = add(made, batch, 1, gradient="none", algorithm=resolve(algorithm))
    assert torch.equal(flat(made, gradient=True), held) and metrics["loss/train"] != 0
    assert (made.token_columns(MODEL, 0)["logprob"] == with_gradient).all()
    step(made, 1)  # the scored batch does not count


@pytest.mark.slow
def test_a_batch_that_fails_leaves_the_gradients_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made, batch = trainer(), games(7)
    add(made, batch, 0)
    held = flat(made, gradient=True).clone()
    endless = asked(batch, 1, normalizer=1e-320)
    with pytest.raises(TrainingError, match="not finite; the batch was left out"):
        made.train(batch.tree, batch.entries, endless)
    assert torch.equal(flat(made, gradient=True), held)
    step(made, 1)


@pytest.mark.slow
def test_what_counts_on_other_gradients_is_refused(tmp_path: Path) -> None:
    made, batch = trainer(), games(8)
    with pytest.raises(GradientsLostError, match="holds the gradients of 0 batches at step 0, not of 1"):
        add(made, batch, 1)
    add(made, batch, 0)
    held = flat(made, gradient=True).clone()
    add(made, batch, 0)  # the first one begins anew
    assert torch.equal(flat(made, gradient=True), held)
    with pytest.raises(GradientsLostError, match="of 1 batches at step 0, not of 2"):
        step(made, 2)
    with pytest.raises(GradientsLostError, match="of 1 batches"):  # a batch that moves the weights itself
        made.train(batch.tree, batch.entries, asked(batch, 0, gradient="step"))
    with pytest.raises(TrainingError, match="is at step 0; this batch starts from step 1"):
        step(made, 1, at=1)
    before = flat(made).clone()
    made.save(MODEL, tmp_path / "0000")  # whole steps alone, whatever is held
    made.open(MODEL, LORA, checkpoint=tmp_path / "0000")
    assert torch.equal(flat(made), before)
    add(made, batch, 0)
    for one in made.parameters(MODEL).values():
        one.grad.fill_(float("inf"))
    with pytest.raises(TrainingError, match="gradient norm"):
        step(made, 1)
    with pytest.raises(GradientsLostError, match="of 0 batches"):
        step(made, 1)
    assert torch.equal(flat(made), before)


@pytest.mark.slow
def test_a_step_without_batches_moves_the_momentum_alone() -> None:
    made, batch = trainer(), games(9)
    before = flat(made).clone()
    assert step(made, 0) == 0.0 and torch.equal(flat(made), before) and made.steps == {MODEL: 1}
    add(made, batch, 0, step=1)
    step(made, 1, at=1)
    assert not torch.equal(flat(made), before)


@pytest.mark.slow
def test_sent_again_after_a_restart_gives_the_same_bits(tmp_path: Path) -> None:
    """The worker dies between two batches: opened again, the same batches give the same weights."""
    batches = [games(seed, groups=1) for seed in range(2)]
    straight, killed = trainer(), trainer()
    for made in (straight, killed):
        add(made, batches[0], 0)
        step(made, 1)
        made.save(MODEL, tmp_path / f"{id(made)}")
    add(killed, batches[0], 0, step=1)
    again = Trainer(policy(qwen3(), dtype=torch.float64), token_budget=64)
    again.open(MODEL, LORA, checkpoint=tmp_path / f"{id(killed)}")
    for made in (straight, again):
        for number, batch in enumerate(batches):
            add(made, batch, number, step=1)
        step(made, 2, at=1)
    assert torch.equal(flat(straight), flat(again))


@pytest.mark.slow
def test_open_models_hold_gradients_beside_each_other() -> None:
    made, alone, batch = trainer(), trainer(), games(10)
    made.open("project/other", LoraSpec(r=5, alpha=10), seed=2)
    add(made, batch, 0)
    add(alone, batch, 0)
    made.train(batch.tree, batch.entries, asked(batch, 0, model="project/other"))
    step(made, 1)
    step(alone, 1)
    assert torch.equal(flat(made), flat(alone))
    request = StepRequest(model="project/other", step=0, batches=1, optimizer=ADAM, rate=1e-2)
    assert made.step(request).grad_norm > 0
