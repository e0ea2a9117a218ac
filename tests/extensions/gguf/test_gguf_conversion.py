"""A GGUF file becomes a folder with the same weights and the same ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize
from gguf_files import NANO, gguf_name, nano_model, write_gguf
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, set_seed

from art.rendering.registry import create_chat_renderer
from art_extensions.gguf.cache import RECORD_FILE, converted_name, digest_of
from art_extensions.gguf.conversion import convert
from art_extensions.gguf.header import read_config, read_header
from art_extensions.gguf.messages import ConversionRequest
from art_extensions.gguf.tokenizer import SPLITS, read_tokenizer

SHAPE: dict[str, Any] = dict(
    vocab_size=355,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
)
TEXTS = [
    "Hello WORLD, don't  stop.\n\n\t1234 é",
    "<|im_start|>user\nHi<|im_end|>",
    "<tool_call>{}</tool_call>",
]


def made(config: Any) -> Any:
    set_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def converted(path: Path, cache: Path, *, phases: list[str] | None = None) -> Path:
    request = ConversionRequest(source=str(path), cache=str(cache), patience_s=60)
    return convert(request, ([] if phases is None else phases).append)


def logits(causal_lm: Any) -> torch.Tensor:
    with torch.no_grad():
        return causal_lm(torch.arange(40)[None] * 7 % 355).logits.float()


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SHAPE, tie_word_embeddings=True),
        LlamaConfig(**SHAPE, tie_word_embeddings=False),
        Qwen2Config(**SHAPE, tie_word_embeddings=False),
    ],
    ids=["llama", "llama-untied", "qwen2"],
)
def test_unquantized_weights_stay_what_they_are(tmp_path: Path, config: Any) -> None:
    causal_lm = made(config)
    folder = converted(write_gguf(tmp_path / "m.gguf", causal_lm, type="F32"), tmp_path / "cache")
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(logits(ours), logits(causal_lm))
    assert load_file(folder / "model.safetensors")["model.norm.weight"].dtype is torch.float32
    assert json.loads((folder / "config.json").read_bytes())["dtype"] == "float32"


def test_bfloat16_stays_bfloat16(tmp_path: Path) -> None:
    folder = converted(write_gguf(tmp_path / "m.gguf", nano_model(), type="BF16"), tmp_path / "cache")
    theirs, ours = (load_file(one / "model.safetensors") for one in (NANO, folder))
    assert {name: one.dtype for name, one in ours.items()} == {name: torch.bfloat16 for name in theirs}
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("type", ["Q8_0", "Q4_1", "Q4_0", "Q5_1"])
def test_quantized_weights_are_what_the_file_says_to_float16s_rounding(tmp_path: Path, type: str) -> None:
    causal_lm = nano_model()
    folder = converted(write_gguf(tmp_path / "m.gguf", causal_lm, type=type), tmp_path / "cache")
    kind = GGMLQuantizationType[type]
    ours = load_file(folder / "model.safetensors")
    for name, tensor in causal_lm.state_dict().items():
        if name == "lm_head.weight":
            assert name not in ours
            continue
        numbers = tensor.numpy()
        exact = dequantize(quantize(numbers, kind), kind) if numbers.ndim > 1 else numbers
        assert ours[name].dtype is torch.float16, name
        np.testing.assert_allclose(ours[name].float().numpy(), exact, rtol=2**-11, atol=2**-25)
    assert json.loads((folder / "config.json").read_bytes())["dtype"] == "bfloat16"


def test_what_float16_cannot_hold_is_stored_in_float32(tmp_path: Path) -> None:
    causal_lm = nano_model()
    causal_lm.model.norm.weight.data[0] = 1e6
    folder = converted(write_gguf(tmp_path / "m.gguf", causal_lm, type="Q8_0"), tmp_path / "cache")
    ours = load_file(folder / "model.safetensors")["model.norm.weight"]
    assert ours.dtype is torch.float32 and ours[0] == 1e6


def test_tokenizer_template_and_ends_come_along(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", nano_model(), values={"tokenizer.ggml.eot_token_id": 346})
    folder = converted(path, tmp_path / "cache")
    ours = PreTrainedTokenizerFast.from_pretrained(folder)
    theirs = PreTrainedTokenizerFast.from_pretrained(NANO)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert (ours.eos_token, ours.pad_token, ours.bos_token) == ("<|im_end|>", "<|endoftext|>", None)
    assert set(ours.all_special_tokens) >= {"<|im_end|>", "<|endoftext|>"}
    for text in TEXTS:
        assert ours.decode(ours.encode(text)) == text
    renderer = create_chat_renderer(folder, name="mine")
    ids = renderer.render([{"role": "user", "content": "Hi"}], None)
    assert ours.decode(ids) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert json.loads((folder / "generation_config.json").read_bytes())["eos_token_id"] == [348, 346]


@pytest.mark.parametrize("rule", sorted(SPLITS))
def test_every_rule_loses_no_text(tmp_path: Path, rule: str) -> None:
    tokenizer = read_tokenizer(read_header(write_gguf(tmp_path / "m.gguf", made(tiny()), rule=rule)))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def tiny() -> LlamaConfig:
    return LlamaConfig(**{**SHAPE, "hidden_size": 32, "num_hidden_layers": 1, "head_dim": 8})


def test_the_first_token_is_put_before_a_text_where_the_file_says_so(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    path = tmp_path / "m.gguf"
    original = GGUFWriter.add_add_bos_token
    try:
        GGUFWriter.add_add_bos_token = lambda self, value: original(self, True)  # type: ignore[method-assign]
        write_gguf(path, made(tiny()), values={"tokenizer.ggml.bos_token_id": 346})
    finally:
        GGUFWriter.add_add_bos_token = original  # type: ignore[method-assign]
    tokenizer = read_tokenizer(read_header(path))
    assert tokenizer.encode("Hi")[0] == 346 and tokenizer.bos_token == "<|endoftext|>"


def test_scaled_positions_are_kept(tmp_path: Path) -> None:
    scaled = {"qwen3.rope.scaling.type": "yarn", "qwen3.rope.scaling.factor": 4.0}
    scaled |= {"qwen3.rope.scaling.original_context_length": 256}
    header = read_header(write_gguf(tmp_path / "m.gguf", nano_model(), values=scaled))
    wanted = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert read_config(header).rope_parameters == {**wanted, "rope_theta": 10000.0}


def test_the_card_says_where_it_is_from_and_what_the_types_are(tmp_path: Path) -> None:
    path, phases = write_gguf(tmp_path / "m.gguf", nano_model()), list[str]()
    folder = converted(path, tmp_path / "cache", phases=phases)
    card = (folder / "README.md").read_text()
    assert card.startswith('---\nlicense: "mit"\n---\n') and "# A small model" in card
    assert digest_of(path) in card and f"`{path}`" in card and "170,816 parameters" in card
    numbers = sum(one.numel() for one in nano_model().parameters() if one.ndim > 1)
    assert f"| Q4_1 | 22 | {numbers:,} | 5.00 |" in card and "stored in float16" in card
    record = json.loads((folder / RECORD_FILE).read_bytes())
    assert record["source"] == str(path) and record["parameters"] == 170_816
    assert phases[0] == "reading m.gguf" and phases[-1] == "writing the converted model"
    assert folder.name == converted_name(digest_of(path))
    assert converted(path, tmp_path / "cache", phases=phases) == folder and len(phases) == 3


def test_names_are_those_of_the_package(tmp_path: Path) -> None:
    names = {one.name for one in read_header(write_gguf(tmp_path / "m.gguf", nano_model())).tensors}
    assert names == {gguf_name(name) for name in nano_model().state_dict()} - {"output.weight"}
