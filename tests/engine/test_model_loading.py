"""Which models load, that they compute what `transformers` computes, and that unfit ones are refused
clearly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import (
    VOCAB,
    ask,
    build_adapter,
    build_neox,
    build_qwen3,
    reference_logprobs,
    save_model,
    whole,
)
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen3MoeConfig,
)

from art.engine.builtin.engine import BuiltinEngine
from art.engine.builtin.model import load_model
from art.errors import ConfigurationError
from art.wire.engine import BuiltinOptions

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
PROMPT = [5, 17, 300, 4, 9, 211, 80, 33, 2, 150]


def build(kind: str, folder: Path) -> Path:
    if kind == "neox":
        return build_neox(folder)
    configs = {
        "llama": lambda: LlamaConfig(**SMALL),
        "sliding window": lambda: MistralConfig(**SMALL, sliding_window=6),
        "experts": lambda: Qwen3MoeConfig(
            **SMALL,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            decoder_sparse_step=1,
            head_dim=8,
        ),
        "dynamic rotary": lambda: LlamaConfig(
            **SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        ),
    }
    return save_model(folder, configs[kind]())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["neox", "llama", "sliding window", "experts", "dynamic rotary"])
async def test_other_families_compute_what_transformers_computes(kind: str, tmp_path: Path) -> None:
    folder = build(kind, tmp_path)
    engine = await BuiltinEngine.start(str(folder), BuiltinOptions(threads=1, max_step_tokens=16))
    reference = AutoModelForCausalLM.from_pretrained(folder)
    prompt = PROMPT * 4
    # Read in pieces, then token by token, then once more from the cache.
    for _ in range(2):
        out = await whole(engine.generate(ask(prompt, max_tokens=12, seed=1)))
        expected = reference_logprobs(reference, [*prompt, *out.token_ids])
        assert out.logprobs == pytest.approx(expected[len(prompt) - 1 :], abs=1e-4)
    assert (await engine.score(None, [PROMPT]))[0] == pytest.approx(
        reference_logprobs(reference, PROMPT), abs=1e-4
    )
    await engine.close()


@pytest.mark.slow
async def test_bfloat16_stays_near_float32(base: Path) -> None:
    engine = await BuiltinEngine.start(str(base), BuiltinOptions(threads=1, dtype="bfloat16"))
    out = await whole(engine.generate(ask(PROMPT, max_tokens=20, seed=1)))
    expected = reference_logprobs(AutoModelForCausalLM.from_pretrained(base), [*PROMPT, *out.token_ids])
    differences = torch.tensor(expected[len(PROMPT) - 1 :]) - torch.tensor(out.logprobs)
    assert 0 < differences.abs().mean() < 0.1
    await engine.close()


@pytest.mark.slow
async def test_without_merging_an_adapter_computes_the_same(base: Path, tmp_path: Path) -> None:
    adapter = build_adapter(tmp_path, base, seed=1)
    outs = []
    for merge_mb in (0, 64):
        engine = await BuiltinEngine.start(str(base), BuiltinOptions(threads=1, merge_mb=merge_mb))
        await engine.load_adapter("a", adapter)
        outs.append(await whole(engine.generate(ask(PROMPT, "a", max_tokens=20, seed=1))))
        await engine.close()
    assert outs[0].token_ids == outs[1].token_ids
    assert outs[0].logprobs == pytest.approx(outs[1].logprobs, abs=1e-4)


def test_a_model_without_attention_is_refused(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4)
    with pytest.raises(ConfigurationError, match="builtin engine"):
        load_model(str(save_model(tmp_path, config)), BuiltinOptions())


@pytest.mark.slow
def test_soft_caps_and_windows_are_computed(tmp_path: Path) -> None:
    """Loading compares with the model's own attention, caps and windows included."""
    config = Gemma2Config(**SMALL, head_dim=8, attn_logit_softcapping=0.5, sliding_window=4)
    model = load_model(str(save_model(tmp_path, config)), BuiltinOptions())
    rows = [[(3 * at + 1) % config.vocab_size for at in range(12)]]
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert model.score(0, rows)[0] == pytest.approx(reference_logprobs(stock, rows[0]), abs=1e-4)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing-here"):
        load_model(str(tmp_path / "nothing-here"), BuiltinOptions())


@pytest.mark.slow
def test_a_cache_that_holds_nothing_is_refused(base: Path, tmp_path: Path) -> None:
    from art.engine.builtin.core import EngineCore

    wide = build_qwen3(tmp_path, num_attention_heads=64, num_key_value_heads=64, head_dim=128)
    options = BuiltinOptions(cache_mb=1)
    with pytest.raises(ConfigurationError, match="cache_mb=1"):
        EngineCore(load_model(str(wide), options), options)
