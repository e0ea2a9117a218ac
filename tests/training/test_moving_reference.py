"""A KL reference that follows the policy: its weights, the divergence from it, its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tiny_policies import MODEL, causal_lm, games, ids_to, policy, qwen3

from art.batch.algorithms import resolve
from art.batch.batch_types import Batch
from art.errors import CheckpointError, ConfigurationError
from art.training.trainer import Trainer
from art.wire.algorithm import Algorithm, KlSpec
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest

LORA = LoraSpec(r=3, alpha=6)
Tensors = dict[str, torch.Tensor]


def following(mixup: float = 0.3, every: int | None = None, **parts: Any) -> Algorithm:
    kl = KlSpec(coefficient=0.2, reference="average", mixup=mixup, every=every, **parts)
    return Algorithm(kl=kl)


def asked(batch: Batch, algorithm: Algorithm, step: int, reference: str | None = None) -> TrainRequest:
    return TrainRequest(
        model=MODEL,
        step=step,
        algorithm=algorithm,
        optimizer=OptimizerSpec(learning_rate=3e-2),
        normalizer=batch.normalizer,
        reference=reference,
    )


def opened(lora: LoraSpec = LORA, **options: Any) -> Trainer:
    made = Trainer(policy(dtype=torch.float64), token_budget=64)
    made.open(MODEL, lora, **options)
    return made


def learn(made: Trainer, steps: range, algorithm: Algorithm) -> list[dict[str, float]]:
    found = []
    for step in steps:
        batch = games(step)
        found.append(made.train(batch.tree, batch.entries, asked(batch, algorithm, step)))
    return found


def weights(made: Trainer) -> Tensors:
    return {name: one.detach().clone() for name, one in made.parameters(MODEL).items()}


@pytest.mark.slow
@pytest.mark.parametrize("every", [None, 1, 3])
def test_the_average_is_that_of_the_adapters(every: int | None, tmp_path: Path) -> None:
    made = opened()
    expected = weights(made)
    for step in range(7):
        learn(made, range(step, step + 1), following(every=every))
        now = weights(made)
        if (step + 1) % (every or 1) == 0:
            expected = {name: 0.7 * expected[name] + 0.3 * now[name] for name in now}
    made.save(MODEL, tmp_path / "0007")
    found, adapter = (
        load_file(tmp_path / "0007" / name) for name in ("average.safetensors", "adapter_model.safetensors")
    )
    assert found.keys() == adapter.keys()
    for name, one in found.items():
        assert (one - expected[name]).norm() <= 1e-12 * expected[name].norm()
        assert not torch.equal(one, adapter[name])


@pytest.mark.slow
def test_the_divergence_is_that_from_a_stock_model_with_the_average(tmp_path: Path) -> None:
    made = opened()
    learn(made, range(3), following())
    made.save(MODEL, tmp_path / "0003")
    batch = games(3)
    metrics = made.train(batch.tree, batch.entries, asked(batch, following(), 3))
    policy_E = stock_logprobs(tmp_path / "0003", batch)
    folder = tmp_path / "averaged"
    folder.mkdir()
    config = (tmp_path / "0003" / "adapter_config.json").read_text()
    (folder / "adapter_config.json").write_text(config)
    save_file(load_file(tmp_path / "0003" / "average.safetensors"), folder / "adapter_model.safetensors")
    distance_E = policy_E - stock_logprobs(folder, batch)
    weight_E = torch.from_numpy(batch.entries.weight_E).double()
    wanted = float((weight_E * (torch.expm1(-distance_E) + distance_E)).sum()) / batch.normalizer
    assert wanted > 1e-6 and metrics["loss/kl"] == pytest.approx(wanted, rel=1e-10)


def stock_logprobs(folder: Path, batch: Batch) -> torch.Tensor:
    """Of the entries, by PEFT and transformers alone, a row for each."""
    model = PeftModel.from_pretrained(causal_lm(qwen3(), "sdpa", torch.float64), str(folder)).eval()
    found = []
    with torch.no_grad():
        for node in batch.entries.token_E.tolist():
            ids = torch.tensor(ids_to(batch.tree, node))
            found.append(torch.log_softmax(model(input_ids=ids[None, :-1]).logits[0, -1], -1)[ids[-1]])
    return torch.stack(found)


def test_the_first_step_has_no_distance() -> None:
    first, second = learn(opened(), range(2), following())
    assert first["loss/kl"] == 0.0 < second["loss/kl"]


@pytest.mark.slow
def test_a_run_with_an_average_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    lora = LoraSpec(r=3, alpha=6, dropout=0.25)
    algorithm = Algorithm(
        kl=KlSpec(
            estimator="k1", coefficient=0.2, place="shaped_advantage", reference="average", mixup=0.6, every=2
        )
    )
    straight = opened(lora)
    learn(straight, range(3), algorithm)
    assert "average.safetensors" in straight.save(MODEL, tmp_path / "0003")
    expected = learn(straight, range(3, 5), algorithm)
    straight.save(MODEL, tmp_path / "straight")
    again = opened(lora, seed=7, checkpoint=tmp_path / "0003")
    got = learn(again, range(3, 5), algorithm)
    again.save(MODEL, tmp_path / "resumed")
    for one, other in zip(expected, got, strict=True):
        assert one["loss/kl_policy_ref"] == other["loss/kl_policy_ref"] != 0
        assert one["loss/grad_norm"] == other["loss/grad_norm"]
    assert straight.digest(MODEL) == again.digest(MODEL)
    for file in (tmp_path / "straight").iterdir():
        assert file.read_bytes() == (tmp_path / "resumed" / file.name).read_bytes(), file.name


@pytest.mark.slow
def test_a_checkpoint_that_lost_its_average_is_refused(tmp_path: Path) -> None:
    made = opened()
    learn(made, range(1), following())
    made.save(MODEL, tmp_path / "0001")
    (tmp_path / "0001" / "average.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"average\.safetensors"):
        made.open(MODEL, LORA, checkpoint=tmp_path / "0001")
    assert made.steps == {MODEL: 1}


def test_a_checkpoint_without_one_is_what_it_was(tmp_path: Path) -> None:
    made = opened()
    learn(made, range(1), Algorithm())
    assert "average.safetensors" not in made.save(MODEL, tmp_path / "0001")
    state = (tmp_path / "0001" / "trainer_state.json").read_text()
    assert "average" not in state and "entropy" not in state


def test_what_an_average_cannot_follow_is_refused_by_name() -> None:
    made, batch = opened(), games(1)
    whole = Trainer(policy(), token_budget=64)
    whole.open(MODEL, None)
    with pytest.raises(ConfigurationError, match=r"'average' is a second LoRA.*trains all weights"):
        whole.train(batch.tree, batch.entries, asked(batch, following(), 0))
    added = asked(batch, following(), 0).model_copy(update={"gradient": "add"})
    with pytest.raises(ConfigurationError, match=r"kl\.reference 'average' follows steps"):
        made.train(batch.tree, batch.entries, added)


@pytest.mark.slow
def test_a_reference_that_is_switched_off_is_not_needed(tmp_path: Path) -> None:
    """On, off and on again in one trainer (NeMo-RL#1968): a step without a KL is that of a trainer that never
    had a reference, and asks none, not even one whose folder is gone.
    """
    kl = KlSpec(coefficient=0.2)
    off = resolve("art", kl=None)
    made, never = opened(), opened()
    batches = [games(step) for step in range(3)]
    gone = str(tmp_path / "nowhere")
    first = made.train(batches[0].tree, batches[0].entries, asked(batches[0], Algorithm(kl=kl), 0))
    assert first["loss/kl"] == 0.0  # the adapter is fresh, so that the steps are equal
    never.train(batches[0].tree, batches[0].entries, asked(batches[0], off, 0))
    without = made.train(batches[1].tree, batches[1].entries, asked(batches[1], off, 1, gone))
    never.train(batches[1].tree, batches[1].entries, asked(batches[1], off, 1))
    assert "loss/kl" not in without and "loss/kl_policy_ref" not in without
    for name, one in weights(never).items():
        assert torch.allclose(weights(made)[name], one, rtol=1e-12, atol=1e-15), name
    again = made.train(batches[2].tree, batches[2].entries, asked(batches[2], Algorithm(kl=kl), 2))
    assert again["loss/kl"] > 0
    with pytest.raises(CheckpointError, match="nowhere"):
        step = KlSpec(coefficient=0.2, reference="step", step=0)
        made.train(batches[2].tree, batches[2].entries, asked(batches[2], Algorithm(kl=step), 3, gone))
