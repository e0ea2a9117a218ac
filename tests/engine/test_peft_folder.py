"""What is read from an adapter folder, and what is refused, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine_models import build_adapter, build_qwen3

from art.engine.builtin.model import load_model
from art.engine.builtin.peft_folder import read_adapter
from art.errors import CheckpointError
from art.wire.engine import BuiltinOptions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "lora_only"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa"}, "pissa"),
    ],
)
def test_what_peft_can_and_we_cannot_is_refused_by_name(
    base: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    folder = build_adapter(tmp_path, base, seed=1)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(CheckpointError, match=named):
        read_adapter(folder)


def test_a_truncated_file_is_refused(base: Path, tmp_path: Path) -> None:
    weights = build_adapter(tmp_path, base, seed=1) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="broken or incomplete"):
        read_adapter(tmp_path)


def test_an_embedding_adapter_is_refused_by_its_tensor(base: Path, tmp_path: Path) -> None:
    folder = build_adapter(tmp_path, base, seed=1, target_modules=["embed_tokens", "q_proj"])
    with pytest.raises(CheckpointError, match=r"embed_tokens\.base_layer"):
        read_adapter(folder)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"hidden_size": 32}, {"num_hidden_layers": 3}])
def test_an_adapter_of_another_model_is_refused(base: Path, tmp_path: Path, changes: dict[str, int]) -> None:
    other = build_qwen3(tmp_path / "other", **changes)
    adapter = read_adapter(build_adapter(tmp_path / "adapter", other, seed=1))
    model = load_model(str(base), BuiltinOptions())
    with pytest.raises(CheckpointError, match="trained on another model"):
        model.passes.add(1, adapter)
    model.passes.add(1, read_adapter(build_adapter(tmp_path / "own", base, seed=1)))  # nothing was kept


def test_the_scale_is_pefts(base: Path, tmp_path: Path) -> None:
    plain = read_adapter(build_adapter(tmp_path / "plain", base, seed=1, r=4, lora_alpha=8))
    stabilised = read_adapter(
        build_adapter(tmp_path / "rs", base, seed=1, r=4, lora_alpha=8, use_rslora=True)
    )
    assert (plain.scale(4), stabilised.scale(4)) == (2.0, 4.0)
    assert plain.digest != stabilised.digest
