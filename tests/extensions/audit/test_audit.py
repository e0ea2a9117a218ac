"""`art audit-model` on the shipped models, which pass, and on tiny ones that fail in known ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3NextConfig,
    set_seed,
)
from typer.testing import CliRunner

from art.cli.main import app
from art.rendering.registry import create_chat_renderer
from art_extensions.audit.audit_computation import LIMITS, judge_difference, targets
from art_extensions.audit.audit_conversation import AuditVerdict, renderer_verdicts
from art_extensions.audit.audit_run import all_verdicts
from art_extensions.audit.trainer_side import LogprobDifference

pytestmark = pytest.mark.slow

TURNS = "{{'<' + m['role'] + '>' + text + '<end>'}}"
STRIPS = (
    "{% for m in messages %}{% set text = m['content'] %}"
    "{% if m['role'] == 'assistant' %}{% set text = text.split('</think>')[-1].strip() %}{% endif %}"
    + TURNS
    + "{% endfor %}{% if add_generation_prompt %}{{'<assistant>'}}{% endif %}"
)
"""Thinking of earlier turns is dropped; everything else is appended."""
REWRITES = (
    "{% for m in messages %}{% set text = m['content'] %}"
    "{% if loop.last and m['role'] == 'assistant' %}{% set text = '<think></think>' + text %}{% endif %}"
    + TURNS
    + "{% endfor %}{% if add_generation_prompt %}{{'<assistant>'}}{% endif %}"
)
"""The last turn is written in another way than the same turn later."""
SHAPE: dict[str, Any] = dict(
    vocab_size=260,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    initializer_range=0.2,
)


ROPE = {"rope_type": "default", "rope_theta": 1e4}


def save(folder: Path, config: Any, template: str) -> str:
    """A random model and a tokenizer of bytes."""
    set_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    marks = ["<end>", "<user>", "<assistant>", "<system>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={text: at for at, text in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", additional_special_tokens=marks[1:]
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return str(folder)


async def audited(name: str) -> dict[str, AuditVerdict]:
    return {verdict.check: verdict async for verdict in all_verdicts(name, device="cpu")}


@pytest.mark.parametrize("name", ["art/nano-games", "art/nano-tools", "art/nano#4bit"])
def test_the_shipped_models_pass(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["audit-model", name, "--device", "cpu", "--json", str(tmp_path / "a.json")]
    )
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["passed"] is True
    levels = {verdict["check"]: verdict["level"] for verdict in report["verdicts"]}
    assert set(levels.values()) == {"pass"} and len(levels) == 15
    named = {"tools", "bridging: tool calls", "packed = plain rows", "sampler = trainer"}
    assert named | {"checkpoint in PEFT"} <= set(levels)


async def test_a_template_that_strips_thinking_is_noted_and_bridged(tmp_path: Path) -> None:
    found = await audited(save(tmp_path, Qwen3Config(**SHAPE), STRIPS))
    assert found["template: append-only"].level == "pass"
    assert found["template: thinking"].level == "note"
    assert "stripped" in found["template: thinking"].what
    assert found["renderer"].what == "GenericToolsRenderer"
    assert found["bridging: thinking"].level == "pass"
    assert found["tool format"].level == "note" and "knows no tools" in found["tool format"].what
    assert found["bridging: tool calls"].level == found["tool arguments"].level == "pass"
    assert found["tools"].level == "pass", "in the generic format"
    assert [verdict.check for verdict in found.values() if verdict.level == "fail"] == []


def test_a_template_that_rewrites_turns_fails(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", Qwen3Config(**SHAPE), REWRITES)
    done = CliRunner().invoke(app, ["audit-model", folder, "--json", str(tmp_path / "a.json")])
    assert done.exit_code == 1, done.output
    report = json.loads((tmp_path / "a.json").read_text())
    failed = {v["check"]: v for v in report["verdicts"] if v["level"] == "fail"}
    assert set(failed) == {"bridging: plain", "bridging: thinking", "bridging: tool calls"}
    assert "starts a branch" in failed["bridging: plain"]["what"]
    assert "art_renderer" in failed["bridging: plain"]["remedy"]
    assert "3 of" in done.output


async def test_what_refuses_a_model_says_why(tmp_path: Path) -> None:
    linear = dict(
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=12,
        shared_expert_intermediate_size=12,
    )
    found = await audited(save(tmp_path, Qwen3NextConfig(**SHAPE, **linear), STRIPS))
    assert found["token trees"].level == "note" and "linear_attention" in found["token trees"].what
    assert found["engine"].level == "fail" and "linear_attention" in found["engine"].what
    assert found["packed = plain rows"].level == found["checkpoint in PEFT"].level == "pass"


async def test_a_context_that_cannot_be_used_whole_is_noted(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 128}
    found = await audited(save(tmp_path, Qwen3Config(**SHAPE, rope_parameters=rope), STRIPS))
    assert found["configuration"].level == "note" and "beyond 128 tokens" in found["configuration"].what
    assert found["sampler = trainer"].level == "pass"


def test_tools_that_would_not_be_in_the_prompt_are_a_failure(tmp_path: Path) -> None:
    """The generic format is switched off, and the template knows none."""
    renderer = create_chat_renderer(save(tmp_path, Qwen3Config(**SHAPE), STRIPS), name="x")
    found = {one.check: one for one in renderer_verdicts(renderer.with_arguments({}, tool_format="template"))}
    assert found["tools"].level == "fail" and "knows no tools" in found["tools"].what


async def test_a_missing_model_is_one_readable_line(tmp_path: Path) -> None:
    found = await audited("art/nothing")
    assert list(found) == ["model"] and "art/nothing" in found["model"].what
    found = await audited(str(tmp_path))
    assert {found[check].level for check in ("renderer", "configuration", "trainer")} == {"fail"}
    assert "\n" not in found["trainer"].what


def test_limits_and_targets() -> None:
    mean, largest = LIMITS["float32"]
    assert (
        judge_difference("x", "float32", LogprobDifference(mean=mean, max=largest, count=3)).level == "pass"
    )
    assert (
        judge_difference("x", "float32", LogprobDifference(mean=mean * 1.1, max=largest, count=3)).level
        == "fail"
    )
    assert (
        judge_difference("x", "float32", LogprobDifference(mean=0.0, max=float("nan"), count=3)).level
        == "fail"
    )
    assert targets(["a.q_proj", "b.q_proj"], ["a.q_proj", "b.q_proj"]).level == "pass"
    apart = targets(["a.q_proj", "b.q_proj"], ["a.q_proj"])
    assert apart.level == "fail" and "b.q_proj" in apart.what


async def test_a_family_whose_renderer_cannot_be_made_here_uses_its_template(tmp_path: Path) -> None:
    """GPT-OSS's renderer downloads its vocabulary; its folder here has another one anyway."""
    config = GptOssConfig(
        **SHAPE, num_local_experts=2, num_experts_per_tok=1, sliding_window=16, rope_parameters=ROPE
    )
    found = await audited(save(tmp_path, config, STRIPS))
    assert found["renderer"].what == "GenericToolsRenderer"
    assert [verdict.check for verdict in found.values() if verdict.level == "fail"] == []
