"""An adapter that another program wrote goes on training: its weights, its step, a fresh optimizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_policies import MODEL, games, llama, policy, request, trainer

from art.errors import CheckpointError
from art.training.trainer import Trainer
from art.wire.training import LoraSpec

LORA = LoraSpec(r=4, alpha=8)
ROWS = [[1, 2, 3, 4, 5]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, batch = trainer(), games()
    made.train(batch.tree, batch.entries, request(batch))
    path = tmp_path_factory.mktemp("checkpoints") / "0001"
    made.save(MODEL, path)
    return path


def plain(source: Path, target: Path, **changes: object) -> Path:
    """The two files of PEFT, and a tokenizer's beside them."""
    target.mkdir(parents=True)
    config = json.loads((source / "adapter_config.json").read_text())
    config["target_modules"] = ".*_proj"  # a pattern, as Unsloth writes it
    (target / "adapter_config.json").write_text(json.dumps({**config, **changes}))
    (target / "adapter_model.safetensors").write_bytes((source / "adapter_model.safetensors").read_bytes())
    (target / "tokenizer.json").write_text("{}")
    return target


@pytest.mark.slow
def test_it_computes_what_it_did_and_trains_on_from_its_step(trained: Path, tmp_path: Path) -> None:
    original, adopted = trainer(), Trainer(policy(), token_budget=64)
    original.open(MODEL, LORA, checkpoint=trained)
    assert adopted.open(MODEL, LORA, checkpoint=plain(trained, tmp_path / "0007")) == 7
    assert adopted.score(MODEL, ROWS) == original.score(MODEL, ROWS)
    batch = games()
    adopted.train(batch.tree, batch.entries, request(batch, step=7))
    assert adopted.score(MODEL, ROWS) != original.score(MODEL, ROWS)
    adopted.save(MODEL, tmp_path / "0008")  # from here on it is a checkpoint like any other
    assert adopted.open(MODEL, LORA, checkpoint=tmp_path / "0008") == 8


def test_the_dropout_of_training_is_the_model_s_own_choice(trained: Path, tmp_path: Path) -> None:
    made = Trainer(policy(), token_budget=64)
    spec = LORA.model_copy(update={"dropout": 0.1})
    assert made.open(MODEL, spec, checkpoint=plain(trained, tmp_path / "0000")) == 0


def test_what_does_not_fit_is_refused_and_nothing_changes(trained: Path, tmp_path: Path) -> None:
    made = trainer()
    folder = plain(trained, tmp_path / "0000")
    with pytest.raises(CheckpointError, match="holds the LoRA"):
        made.open(MODEL, LoraSpec(r=2), checkpoint=folder)
    with pytest.raises(CheckpointError, match="use_dora"):
        made.open(MODEL, LORA, checkpoint=plain(trained, tmp_path / "dora" / "0000", use_dora=True))
    with pytest.raises(CheckpointError, match="no step for a name"):
        made.open(MODEL, LORA, checkpoint=plain(trained, tmp_path / "sft"))
    assert made.steps == {MODEL: 0}


def test_an_adapter_of_another_base_is_refused_by_its_shapes(trained: Path, tmp_path: Path) -> None:
    wide = llama()
    wide.intermediate_size = 40
    other = Trainer(policy(wide), token_budget=64)
    with pytest.raises(CheckpointError, match=r"is \(.*\), not \("):
        other.open(MODEL, LORA, checkpoint=plain(trained, tmp_path / "0000"))
