"""The memory of a model, computed from its configuration alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_policies import SHAPE, policy
from transformers import Qwen3Config

from art.errors import ConfigurationError
from art.training.lora import LoraAdapters
from art.training.memory_plan import measure_footprint
from art.wire.training import LoraSpec
from art_extensions.doctor.hardware import (
    ARCHITECTURES,
    GIB,
    cards,
    find_config,
    measure_shape,
    plan_hardware,
)

BILLIONS = {
    "Qwen/Qwen3-0.6B": 0.596,
    "Qwen/Qwen3-1.7B": 1.72,
    "Qwen/Qwen3-4B": 4.02,
    "Qwen/Qwen3-8B": 8.19,
    "Qwen/Qwen3-14B": 14.77,
    "Qwen/Qwen3-32B": 32.76,
    "Qwen/Qwen2.5-0.5B-Instruct": 0.494,
    "Qwen/Qwen2.5-1.5B-Instruct": 1.54,
    "Qwen/Qwen2.5-3B-Instruct": 3.09,
    "Qwen/Qwen2.5-7B-Instruct": 7.62,
    "Qwen/Qwen2.5-14B-Instruct": 14.77,
    "Qwen/Qwen2.5-32B-Instruct": 32.76,
    "Qwen/Qwen2.5-72B-Instruct": 72.71,
    "meta-llama/Llama-3.2-1B-Instruct": 1.24,
    "meta-llama/Llama-3.2-3B-Instruct": 3.21,
    "meta-llama/Llama-3.1-8B-Instruct": 8.03,
    "meta-llama/Llama-3.3-70B-Instruct": 70.55,
}
"""As the models' own cards say."""


@pytest.mark.slow
def test_known_architectures_have_the_parameters_of_their_cards() -> None:
    from transformers import AutoModelForCausalLM

    assert set(BILLIONS) == set(ARCHITECTURES)
    for name, billions in BILLIONS.items():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(ARCHITECTURES[name].config())
        assert sum(one.numel() for one in model.parameters()) / 1e9 == pytest.approx(billions, rel=5e-3), name


def test_a_name_a_size_a_folder_and_an_embedded_model_are_found(tmp_path: Path) -> None:
    assert find_config("8B")[0] == find_config("qwen3-8b")[0] == "Qwen/Qwen3-8B"
    assert find_config("7B")[0] == find_config("Qwen2.5-7B")[0] == "Qwen/Qwen2.5-7B-Instruct"
    Qwen3Config(**SHAPE).save_pretrained(tmp_path)
    assert find_config(str(tmp_path))[1].hidden_size == SHAPE["hidden_size"]
    assert find_config("art/nano-games")[1].model_type == "qwen3"
    with pytest.raises(ConfigurationError, match=r"size '9B'; known sizes: 0\.6B"):
        find_config("9B")


def test_the_bits_of_a_name_are_those_of_the_plan() -> None:
    assert plan_hardware("art/nano#4bit").needed == plan_hardware("art/nano", bits=4).needed
    assert plan_hardware("art/nano#4bit").needed < plan_hardware("art/nano").needed


@pytest.mark.extension
def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at most 1024 tokens; --context is 4096"):
        plan_hardware("art/nano", context=4096)
    with pytest.raises(ConfigurationError, match="has 4, 8 or 16 bits; bits is 5"):
        plan_hardware("art/nano", bits=5)
    with pytest.raises(ConfigurationError, match="no bitsandbytes quantization"):
        plan_hardware("art/nano", bits=8, engine="vllm")
    with pytest.raises(ConfigurationError, match="unknown engine 'tgi'"):
        plan_hardware("art/nano", engine="tgi")


def test_the_count_without_weights_is_that_of_the_loaded_model() -> None:
    config, lora = Qwen3Config(**SHAPE), LoraSpec(r=4, alpha=8)
    shape = measure_shape("tiny", config, lora, cuda=False)
    loaded = policy(config, attention="rectangles", block=4096, long=4096)
    adapters = LoraAdapters(loaded)
    adapters.attach("a1", lora, seed=0)
    trained = list(adapters.parameters("a1").values())
    assert shape.adapter == sum(one.numel() for one in trained)
    assert shape.parameters == sum(
        one.numel() for key, one in loaded.causal_lm.named_parameters() if ".lora_" not in key
    )
    assert shape.layers == 2 and shape.cached == 2 * 2 * 2 * 8 * 4
    assert shape.kept_bytes == pytest.approx(measure_footprint(loaded, trained).token, rel=0.05)


@pytest.mark.slow
def test_fewer_bits_a_smaller_rank_and_a_shorter_context_need_less() -> None:
    plan = plan_hardware("0.6B", rank=64, context=16384)
    assert plan.needed > plan_hardware("0.6B", rank=8, context=16384).needed
    shorter = plan_hardware("0.6B", rank=64, context=2048)
    quantized = plan_hardware("0.6B", rank=64, context=2048, bits=4)
    assert plan.needed > shorter.needed > quantized.needed > GIB
    assert plan_hardware("0.6B", cuda=False).needed > plan_hardware("0.6B").needed
    fits = [card.fits for card in cards(plan, (1, 24, 80))]
    assert fits == [False, True, True]
    assert cards(plan, (80,))[0].step.fits
