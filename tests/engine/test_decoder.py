"""The written-out pass computes what transformers computes, for each kind of model of its family."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import ALL_LINEAR, VOCAB, ask, build_adapter, reference_logprobs, save_model
from peft import PeftModel
from test_core import prompt, run
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from art.engine.builtin import decoder
from art.engine.builtin.core import EngineCore
from art.engine.builtin.decoder import Decoder, is_of_family
from art.engine.builtin.model import load_model
from art.engine.builtin.peft_folder import read_adapter
from art.wire.engine import BuiltinOptions

pytestmark = pytest.mark.slow

CLOSE = 2e-5
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
LLAMA_3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SMALL),
    "llama, tied, biases, other heads": LlamaConfig(
        **SMALL, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, head_dim=16
    ),
    "llama 3.1": LlamaConfig(**SMALL, rope_parameters=LLAMA_3),
    "linear rotation": LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    ),
    "dynamic rotation": LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    ),
    "qwen 2": Qwen2Config(**SMALL),
    "qwen 2, windows": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen 3": Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True),
    "mistral": MistralConfig(**SMALL, sliding_window=6),
}
TOUCHED = {"all": ALL_LINEAR, "mlp": ["gate_proj", "down_proj"], "query": ["q_proj", "v_proj"]}
RANKS = {"all": 4, "mlp": 3, "query": 1}


def randomised(folder: Path, config: Any) -> Path:
    """A saved model whose norms and biases are not those of a fresh one."""
    save_model(folder, config)
    model = AutoModelForCausalLM.from_pretrained(folder)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_sampled_and_scored_logprobs_are_those_of_transformers_and_peft(
    kind: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if packed:
        monkeypatch.setattr(decoder, "SMALL_MODEL_PARAMETERS", 0)
    folder = randomised(tmp_path / "base", CONFIGS[kind])
    # Read in pieces, so that rows are gone on with.
    options = BuiltinOptions(threads=1, max_step_tokens=24)
    core = EngineCore(load_model(str(folder), options), options)
    assert isinstance(core.model.passes, Decoder)
    paths = {
        name: build_adapter(tmp_path / name, folder, seed=n, target_modules=TOUCHED[name], r=RANKS[name])
        for n, name in enumerate(TOUCHED)
    }
    for name, path in paths.items():
        core.adapters.add(name, read_adapter(path))
    owners: list[str | None] = ["all", None, "query", "mlp", "all"]
    mixes: list[list[str | None]] = [[None], ["mlp"], ["all", None], owners]
    for names in mixes:
        requests = [ask(prompt(n, 14 + 5 * n), name, max_tokens=9, seed=n) for n, name in enumerate(names)]
        outs = run(core, requests)
        for name, request, out in zip(names, requests, outs, strict=True):
            row = [*request.prompt_ids, *out.token_ids]
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
            if name is not None:
                model = PeftModel.from_pretrained(model, paths[name])
            expected = reference_logprobs(model, row)
            assert out.logprobs == pytest.approx(expected[len(request.prompt_ids) - 1 :], abs=CLOSE)
            assert core.score(name, [row])[0] == pytest.approx(expected, abs=CLOSE)
    core.drop_adapter("mlp")
    core.adapters.add("again", read_adapter(paths["mlp"]))
    row = prompt(3, 30)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), paths["mlp"])
    assert core.score("again", [row])[0] == pytest.approx(reference_logprobs(model, row), abs=CLOSE)


def test_the_weights_are_there_once(tmp_path: Path) -> None:
    folder = save_model(tmp_path, CONFIGS["qwen 3"])
    module = AutoModelForCausalLM.from_pretrained(folder)
    model = load_model(str(folder), BuiltinOptions())
    assert isinstance(model.passes, Decoder) and is_of_family(module)
    skeleton = model.passes._lora._skeleton
    assert {one.device.type for one in skeleton.parameters()} == {"meta"}


def test_a_model_that_the_pass_does_not_compute_runs_through_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_model(tmp_path, CONFIGS["llama"])
    right = decoder.RootMeanSquare.__call__
    monkeypatch.setattr(decoder.RootMeanSquare, "__call__", lambda self, x: 1.1 * right(self, x))
    with caplog.at_level(logging.WARNING):
        model = load_model(str(folder), BuiltinOptions())
    assert not isinstance(model.passes, Decoder) and "runs through its modules" in caplog.text
    row = prompt(1, 20)
    expected = reference_logprobs(AutoModelForCausalLM.from_pretrained(folder), row)
    assert model.score(0, [row])[0] == pytest.approx(expected, abs=CLOSE)
