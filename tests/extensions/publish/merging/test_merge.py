"""A merged model is a whole model that computes what the base with its adapter computes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from art.engine import nano_models
from art.errors import CheckpointError
from art_extensions.publish.merge_messages import MergeReply, MergeRequest
from art_extensions.publish.merging.merge import (
    check_logits,
    count_parameters,
    merge,
    probe_logits,
    written_dtype,
)

BASE = str(nano_models.resolve("art/nano"))


def make_adapter(folder: Path, targets: list[str], **options: object) -> torch.Tensor:
    """Writes an adapter with random weights; returns the logits of the base with it."""
    torch.manual_seed(0)
    causal_lm = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    config = LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM", **options)  # type: ignore[arg-type]
    adapted = get_peft_model(causal_lm, config).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    logits = probe_logits(adapted)
    adapted.save_pretrained(str(folder))
    return logits


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:Model has `tie_word_embeddings=True`", "ignore:Setting `save_embedding_layers`"
)
@pytest.mark.parametrize(
    ("targets", "tied"),
    [
        (["q_proj", "down_proj"], True),
        (["lm_head"], False),
        (["embed_tokens"], False),
        (["lm_head", "embed_tokens", "v_proj"], False),
    ],
)
def test_what_is_loaded_computes_what_the_adapter_did(tmp_path: Path, targets: list[str], tied: bool) -> None:
    """The nano models share one weight between embedding and output layer: an adapter of one of the two must
    not change the other."""
    wanted = make_adapter(tmp_path / "adapter", targets)
    base = probe_logits(AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32))
    reply = merge(
        MergeRequest(checkpoint=str(tmp_path / "adapter"), base_model="art/nano", to=str(tmp_path / "out"))
    )
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert relative(probe_logits(loaded), wanted) < 1e-5 < 1e-2 < relative(base, wanted)
    assert loaded.config.tie_word_embeddings is tied and loaded.dtype == torch.float32
    assert reply.difference is not None and reply.difference < 1e-5
    assert (reply.dtype, reply.parameters) == ("float32", sum(one.numel() for one in base_parameters()))
    names = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert all((tmp_path / "out" / name).read_bytes() for name in names)


def base_parameters() -> list[torch.Tensor]:
    return list(AutoModelForCausalLM.from_pretrained(BASE).parameters())


@pytest.mark.slow
def test_fully_trained_weights_are_written_as_they_are(tmp_path: Path) -> None:
    causal_lm = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    with torch.no_grad():
        for parameter in causal_lm.parameters():
            parameter.mul_(1.5)
    causal_lm.save_pretrained(str(tmp_path / "0003"))
    request = MergeRequest(
        checkpoint=str(tmp_path / "0003"), base_model="art/nano", to=str(tmp_path / "out"), dtype="bfloat16"
    )
    assert merge(request).difference is None
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == torch.bfloat16
    assert relative(probe_logits(loaded.float()), probe_logits(causal_lm)) < 0.05
    assert (tmp_path / "out" / "tokenizer.json").is_file()  # of the base: these weights came without one


def test_another_function_is_refused() -> None:
    logits = torch.ones(3, 5)
    assert check_logits(logits, logits + 1e-6, torch.float32) < 1e-5
    for wrong in (logits * 1.01, logits * float("nan")):
        with pytest.raises(CheckpointError, match="computes other logits"):
            check_logits(logits, wrong, torch.float32)


def test_the_dtype_is_the_bases_own_for_large_models_only() -> None:
    assert count_parameters(BASE) == 170_816
    assert written_dtype("auto", BASE, 170_816) == torch.float32
    assert written_dtype("auto", BASE, 8_000_000_000) == torch.bfloat16  # what its config says
    assert written_dtype("float16", BASE, 8_000_000_000) == torch.float16


@pytest.mark.slow
def test_the_process_answers_with_the_reason_of_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"cut")
    request = MergeRequest(checkpoint=str(tmp_path), base_model="art/nano", to=str(tmp_path / "out"))
    done = subprocess.run(
        [sys.executable, "-m", "art_extensions.publish.merging.merge"],
        input=request.model_dump_json() + "\n",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    reply = MergeReply.model_validate_json(done.stdout)
    assert done.returncode == 1 and reply.error and not (tmp_path / "out").exists()
