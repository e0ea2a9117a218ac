"""PPO through the tree: the value loss equals that of plain rows, and a run with a critic resumes exactly."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_policies import MODEL, causal_lm, games, ids_to, policy, qwen3, randomize, trainer

from art.batch.batch_types import Batch
from art.errors import CheckpointError
from art.training.critic import Critic
from art.training.lora import LoraAdapters
from art.training.minibatches import make_columns
from art.training.trainer import Trainer
from art.wire.algorithm import AdvantageSpec, Algorithm, CriticSpec, KlSpec, LossSpec, UpdatesSpec
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest

LORA = LoraSpec(r=3, alpha=6, dropout=0.25)
PPO = Algorithm(
    advantage=AdvantageSpec(kind="gae", gamma=0.99, lam=0.95),
    loss=LossSpec(name="ppo"),
    ratio_to="trainer",
    kl=KlSpec(estimator="k1", coefficient=0.05, place="reward"),
    critic=CriticSpec(learning_rate=1e-2, trunk=0.5),
    updates=UpdatesSpec(minibatches=2, epochs=2),
)
Gradients = dict[str, torch.Tensor]


def fixed(critic: Critic, hidden: int) -> Critic:
    """A critic that has an opinion."""
    generator = torch.Generator().manual_seed(2)
    critic.load(
        {
            "critic.weight": torch.randn(hidden, generator=generator, dtype=torch.float64),
            "critic.bias": torch.randn((), generator=generator, dtype=torch.float64),
        }
    )
    return critic


def value_gradients(
    batch: Batch, spec: CriticSpec, values: list[torch.Tensor], rows: list[np.ndarray]
) -> float:
    """Backward of the value loss of these micro-batches; the loss."""
    columns, total = make_columns(batch.entries, dtype=torch.float64, device="cpu"), 0.0
    goals_E = torch.linspace(-1.0, 1.0, len(batch.entries), dtype=torch.float64)
    for values_E, rows_E in zip(values, rows, strict=True):
        where_E = torch.as_tensor(rows_E)
        inputs = columns.inputs(torch.zeros_like(values_E), rows_E, normalizer=batch.normalizer)
        output = Critic.loss(values_E, 0.5 * goals_E[where_E], goals_E[where_E], inputs, spec)
        output.loss.backward()
        total += output.loss.item()
    return total


def plain(batch: Batch, spec: CriticSpec) -> tuple[float, Gradients]:
    """One row per entry's whole context, stock attention, PEFT's own forward."""
    model = get_peft_model(
        causal_lm(qwen3(), "sdpa", torch.float64),
        LoraConfig(r=3, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM"),
    ).eval()
    trained = {name.replace(".default.", "."): p for name, p in model.named_parameters() if "lora_" in name}
    randomize(trained)
    critic = fixed(Critic(16, dtype=torch.float64, device="cpu"), 16)
    states = []
    for node in batch.entries.token_E.tolist():
        ids = torch.tensor(ids_to(batch.tree, int(batch.tree.parent_T[node])))
        states.append(model.base_model.model.model(input_ids=ids[None]).last_hidden_state[0, -1])
    values_E = critic.values(torch.stack(states), spec.trunk)
    loss = value_gradients(batch, spec, [values_E], [np.arange(len(batch.entries))])
    return loss, gradients(trained, critic)


def packed(batch: Batch, spec: CriticSpec, budget: int) -> tuple[float, Gradients]:
    tiny = policy(dtype=torch.float64)
    adapters = LoraAdapters(tiny)
    adapters.attach("a1", LoraSpec(r=3, alpha=6), seed=0)
    trained = adapters.parameters("a1")
    randomize(trained)
    critic = fixed(Critic(16, dtype=torch.float64, device="cpu"), 16)
    values, rows = [], []
    for micro in tiny.pack(batch.tree, batch.entries, budget).micro_batches:
        scores, _ = tiny.entry_scores(micro)
        values.append(critic.values(scores.hidden_PD, spec.trunk)[scores.predictor_E])
        rows.append(micro.entry_E)
    return value_gradients(batch, spec, values, rows), gradients(trained, critic)


def gradients(trained: dict[str, torch.nn.Parameter], critic: Critic) -> Gradients:
    norm = critic.grad_norm(CriticSpec(max_grad_norm=1e9))
    found = {name: p.grad for name, p in trained.items() if p.grad is not None}
    return {**found, "critic": torch.tensor(norm, dtype=torch.float64)}


@pytest.mark.slow
@pytest.mark.parametrize("trunk", [0.0, 0.5])
@pytest.mark.parametrize("budget", [9999, 40])
def test_the_value_loss_of_the_tree_is_that_of_plain_rows(budget: int, trunk: float) -> None:
    batch, spec = games(6, groups=2, size=3), CriticSpec(trunk=trunk, clip=0.5)
    expected, got = plain(batch, spec), packed(batch, spec, budget)
    assert got[0] == pytest.approx(expected[0], rel=1e-10)
    assert got[1].keys() == expected[1].keys() and len(got[1]) == 1 + (28 if trunk else 0)
    for name, gradient in expected[1].items():
        assert gradient.norm() > 0 and (got[1][name] - gradient).norm() <= 1e-10 * gradient.norm(), name


def learn(made: Trainer, steps: range) -> list[dict[str, float]]:
    found = []
    for step in steps:
        batch = games(step)
        rewards_E = (batch.entries.sequence_E % 2).astype(np.float32)
        entries = dataclasses.replace(batch.entries, advantage_E=rewards_E)
        asked = TrainRequest(
            model=MODEL,
            step=step,
            algorithm=PPO,
            optimizer=OptimizerSpec(learning_rate=1e-2),
            normalizer=batch.normalizer,
        )
        found.append(made.train(batch.tree, entries, asked))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("lora", [LORA, None], ids=["lora", "all-weights"])
def test_a_run_with_a_critic_resumes_to_the_same_bytes(tmp_path: Path, lora: LoraSpec | None) -> None:
    straight = Trainer(policy(), token_budget=64)
    straight.open(MODEL, lora)
    learn(straight, range(2))
    files = straight.save(MODEL, tmp_path / "0002")
    assert "critic.safetensors" in files
    assert "critic.safetensors" in json.loads((tmp_path / "0002" / "manifest.json").read_text())["files"]
    expected = learn(straight, range(2, 4))
    straight.save(MODEL, tmp_path / "straight")
    again = Trainer(policy(), token_budget=64)
    assert again.open(MODEL, lora, seed=7, checkpoint=tmp_path / "0002") == 2
    got = learn(again, range(2, 4))
    again.save(MODEL, tmp_path / "resumed")
    for one, other in zip(expected, got, strict=True):
        assert {k: v for k, v in one.items() if not k.startswith(("time/", "memory/"))} == {
            k: v for k, v in other.items() if not k.startswith(("time/", "memory/"))
        }
    for file in (tmp_path / "straight").iterdir():
        assert file.read_bytes() == (tmp_path / "resumed" / file.name).read_bytes(), file.name


@pytest.mark.slow
def test_a_checkpoint_that_lost_its_critic_is_refused(tmp_path: Path) -> None:
    made = trainer(lora=LORA)
    learn(made, range(1))
    made.save(MODEL, tmp_path / "0001")
    manifest = json.loads((tmp_path / "0001" / "manifest.json").read_text())
    (tmp_path / "0001" / "critic.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"critic\.safetensors"):
        made.open(MODEL, LORA, checkpoint=tmp_path / "0001")
    del manifest["files"]["critic.safetensors"]
    (tmp_path / "0001" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"does not list 'critic\.safetensors'"):
        made.open(MODEL, LORA, checkpoint=tmp_path / "0001")
    assert made.steps == {MODEL: 1}


@pytest.mark.slow
def test_the_critic_explains_more_of_the_returns_from_step_to_step() -> None:
    made = Trainer(policy(), token_budget=9999)
    made.open(MODEL, LoraSpec(r=4, alpha=8))
    batch = games(1)
    rewards_E = (batch.entries.sequence_E % 2).astype(np.float32)
    entries = dataclasses.replace(batch.entries, advantage_E=rewards_E)
    explained = []
    critic = CriticSpec(learning_rate=0.1, clip=None, max_grad_norm=10.0)
    algorithm = PPO.model_copy(update={"critic": critic, "kl": None})
    for step in range(12):
        asked = TrainRequest(
            model=MODEL,
            step=step,
            algorithm=algorithm,
            optimizer=OptimizerSpec(learning_rate=1e-4),
            normalizer=batch.normalizer,
        )
        explained.append(made.train(batch.tree, entries, asked)["loss/explained_variance"])
    # At random per rollout, so a linear head explains little; but more and more.
    assert explained[0] == pytest.approx(0.0, abs=1e-9) and explained[-1] > explained[3] > 0.05
