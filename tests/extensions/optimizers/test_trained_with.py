"""Each optimizer in the trainer: resumed to the last bit, put back after a failure, its memory counted."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from tests.training.tiny_policies import BY_TOKEN, MODEL, games, policy, qwen3, randomize

from art.errors import ConfigurationError, TrainingError
from art.training.memory_plan import MOMENTS
from art.training.optimizer import Moments
from art.training.trainer import Trainer
from art.wire.algorithm import UpdatesSpec
from art.wire.training import LoraSpec, OptimizerName, OptimizerSpec, StepRequest, TrainRequest

NAMES = get_args(OptimizerName)
LORA = LoraSpec(r=4, alpha=8)
WIDE = LoraSpec(r=260, alpha=260)
"""Its factors have more than 4,096 numbers."""


def trainer(lora: LoraSpec | None = LORA, **options: object) -> Trainer:
    made = Trainer(policy(qwen3()), token_budget=64)
    made.open(MODEL, lora, seed=1, **options)  # type: ignore[arg-type]
    if lora is not None and not options:
        randomize(dict(made.parameters(MODEL)))
    return made


def step(made: Trainer, name: OptimizerName, **changes: object) -> dict[str, float]:
    at = made.steps[MODEL]
    batch = games(at)
    request = TrainRequest(
        model=MODEL,
        step=at,
        algorithm=BY_TOKEN,
        optimizer=OptimizerSpec(name=name, learning_rate=1e-2),
        normalizer=batch.normalizer,
    )
    return made.train(batch.tree, batch.entries, request.model_copy(update=changes))


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in made.parameters(MODEL).items()}


@pytest.mark.slow
@pytest.mark.parametrize("lora", [LORA, WIDE, None], ids=["LoRA", "wide LoRA", "all weights"])
@pytest.mark.parametrize("name", NAMES)
def test_resumed_to_the_last_bit(name: OptimizerName, lora: LoraSpec | None, tmp_path: Path) -> None:
    made = trainer(lora)
    for _ in range(2):
        step(made, name)
    made.save(MODEL, tmp_path / "0002")
    resumed = trainer(lora, checkpoint=tmp_path / "0002")
    assert resumed.digest(MODEL) == made.digest(MODEL)
    for one in (made, resumed):
        step(one, name)
    assert resumed.digest(MODEL) == made.digest(MODEL)
    ours, theirs = weights(made), weights(resumed)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    made.save(MODEL, tmp_path / "0003")
    resumed.save(MODEL, tmp_path / "0003b")
    written = [(tmp_path / one / "optimizer.safetensors").read_bytes() for one in ("0003", "0003b")]
    assert written[0] == written[1]


def test_muon_moves_each_matrix_of_a_lora_by_an_orthogonal_one() -> None:
    made = trainer()
    before = weights(made)
    step(made, "muon")
    for key, value in weights(made).items():
        change = (value - before[key]) / (1e-2 * 0.2 * max(value.shape) ** 0.5)
        sizes = torch.linalg.svdvals(change)
        assert sizes.min() > 0.3 and sizes.max() < 1.3, key


@pytest.mark.slow
def test_embeddings_and_norms_are_no_matrices_of_muon() -> None:
    made = trainer(None)
    step(made, "muon")
    moments = made._open[MODEL].moments.tensors()
    by_muon = {key.split(".", 1)[1] for key in moments if key.startswith("momentum_buffer.")}
    by_adamw = {key.split(".", 1)[1] for key in moments if key.startswith("exp_avg.")}
    assert "model.embed_tokens.weight" in by_adamw and "model.norm.weight" in by_adamw
    assert by_muon == {key for key in made.parameters(MODEL) if "proj" in key}


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_is_not_finite_changes_nothing(name: OptimizerName) -> None:
    made = trainer()
    step(made, name)
    before, batch = made.digest(MODEL), games(1)
    bad = dataclasses.replace(batch.entries, advantage_E=np.full(len(batch.entries), 1e38, np.float32))
    request = TrainRequest(
        model=MODEL,
        step=1,
        algorithm=BY_TOKEN,
        optimizer=OptimizerSpec(name=name, learning_rate=1.0),
        normalizer=batch.normalizer,
    )
    with pytest.raises(TrainingError, match="the adapter was left as it was"):
        made.train(batch.tree, bad, request)
    assert made.digest(MODEL) == before
    straight = trainer()
    for one in (made, straight):
        while one.steps[MODEL] < 2:
            step(one, name)
    assert made.digest(MODEL) == straight.digest(MODEL)


@pytest.mark.parametrize("lora", [LORA, WIDE], ids=["LoRA", "wide LoRA"])
@pytest.mark.parametrize("name", NAMES)
def test_a_failure_between_two_updates_of_a_step_puts_the_moments_back(
    name: OptimizerName, lora: LoraSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    from art.training import step as steps

    made = trainer(lora)
    step(made, name)
    before, real, calls = made.digest(MODEL), steps.step_optimizer, []

    def second_fails(*args: object, **options: object) -> float:
        calls.append(1)
        if len(calls) == 2:
            raise TrainingError("in the middle")
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(steps, "step_optimizer", second_fails)
    twice = BY_TOKEN.model_copy(update={"updates": UpdatesSpec(epochs=2)})
    with pytest.raises(TrainingError, match="in the middle"):
        step(made, name, algorithm=twice)
    assert len(calls) == 2 and made.digest(MODEL) == before
    monkeypatch.undo()
    straight = trainer(lora)
    for one in (made, straight):
        while one.steps[MODEL] < 3:
            step(one, name)
    assert made.digest(MODEL) == straight.digest(MODEL)


@pytest.mark.parametrize("saved", [False, True])
def test_another_optimizer_than_the_checkpoints_is_refused_by_name(saved: bool, tmp_path: Path) -> None:
    made = trainer()
    step(made, "muon")
    if saved:
        made.save(MODEL, tmp_path / "0001")
        made = trainer(checkpoint=tmp_path / "0001")
    before = made.digest(MODEL)
    with pytest.raises(
        ConfigurationError,
        match=r"is of 'muon', and this step asks for 'adamw'. Go on with optimizer='muon', or .*weights_only",
    ):
        step(made, "adamw")
    held = StepRequest(model=MODEL, step=1, batches=0, optimizer=OptimizerSpec(learning_rate=1e-3), rate=1e-3)
    with pytest.raises(ConfigurationError, match="is of 'muon'"):
        made.step(held)
    assert made.digest(MODEL) == before
    step(made, "muon")


def test_another_kind_of_training_may_have_another_optimizer() -> None:
    """Its moments are fresh in any case; a step that fails brings the earlier ones back."""
    made = trainer()
    step(made, "adamw", kind="sft")
    before = made.digest(MODEL)
    with pytest.raises(TrainingError, match="the adapter was left as it was"):
        step(made, "muon", normalizer=1e-45)
    assert made.digest(MODEL) == before and made._open[MODEL].moments.name == "adamw"
    step(made, "muon")
    assert made._open[MODEL].moments.name == "muon"


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_of_the_state_is_what_the_plan_counts(name: OptimizerName) -> None:
    made = trainer(WIDE)
    step(made, name, gradient="none")
    model = made._open[MODEL]
    model.moments = model.make_moments(name)
    promised = model.moments.bytes_to_come()
    step(made, name)
    parameters = {id(one) for one in model.parameters.values()}
    kept = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
        for parameter, state in model.optimizer.state.items()
        if id(parameter) in parameters
        for moment, one in state.items()
        if isinstance(one, torch.Tensor) and not moment.startswith("qmap")  # tables that all share
    }
    steps = 8 * len(parameters)
    assert abs(sum(kept.values()) - promised) <= steps
    assert model.moments.bytes_to_come() == 0


def bytes_a_parameter(name: OptimizerName, side: int = 1024) -> float:
    parameter = torch.nn.Parameter(torch.zeros(side, side))
    return Moments(name, {"p": parameter}, {"p"}).bytes_to_come() / parameter.numel()


def test_the_page_has_the_bytes_of_each_optimizer() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "tuning.md").read_text()
    section = page.split("\n## Optimizers\n", 1)[1].split("\n## ", 1)[0]
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    shown = {cells[0].strip("`"): float(cells[1]) for cells in table}
    assert shown == {name: round(bytes_a_parameter(name), 2) for name in NAMES}
    assert shown["adamw"] == MOMENTS
