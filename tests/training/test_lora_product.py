"""A LoRA as one operation computes what PEFT's own module does, and leaves to it what it cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_policies import causal_lm, llama, policy

from art.training import lora_product
from art.training.lora import LoraAdapters
from art.training.lora_product import Segments, join_products
from art.wire.training import LoraSpec

IDS = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])


def adapted(dtype: torch.dtype, **options: Any) -> Any:
    """A tiny Llama with random LoRAs `a1` and `a2` on all linear layers, as PEFT makes it."""
    model = causal_lm(llama(), "eager", torch.float32)
    model.requires_grad_(False)
    config = LoraConfig(r=3, lora_alpha=6, target_modules="all-linear", **options)
    peft = get_peft_model(model, config, adapter_name="a1")
    peft.add_adapter("a2", config)
    torch.manual_seed(5)
    for name, parameter in peft.named_parameters():
        if ".lora_" in name:
            parameter.data.normal_()
    peft.set_adapter("a1")
    return peft.to(dtype)


def gradients(peft: Any) -> dict[str, torch.Tensor]:
    """The hidden states of some ids, and the gradient of each trained parameter."""
    peft.zero_grad()
    torch.manual_seed(7)  # of dropout
    hidden = peft.base_model.model.model(input_ids=IDS).last_hidden_state
    torch.manual_seed(8)  # of what the loss asks for
    (hidden * torch.randn(hidden.shape).to(hidden.dtype)).sum().backward()
    found = {name: one.grad.clone() for name, one in peft.named_parameters() if one.grad is not None}
    return {"hidden": hidden.detach(), **found}


def assert_same(joined: dict[str, torch.Tensor], stock: dict[str, torch.Tensor], tolerance: float) -> None:
    assert set(joined) == set(stock)
    for name, one in stock.items():
        assert float((joined[name] - one).norm()) <= tolerance * float(one.norm()), name


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each joined product that was computed."""
    made: list[int] = []
    apply = lora_product._LoraProduct.apply

    def note(*arguments: Any) -> Any:
        made.append(1)
        return apply(*arguments)

    monkeypatch.setattr(lora_product._LoraProduct, "apply", note)
    return made


def test_values_and_gradients_are_those_of_peft(counted: list[int]) -> None:
    peft = adapted(torch.float64)
    stock = gradients(peft)
    join_products(peft, Segments())
    assert not counted
    assert_same(gradients(peft), stock, 1e-12)
    assert len(counted) == 2 * 7


def keep_loras(peft: Any, dtype: torch.dtype, scale: float = 1.0) -> Any:
    for name, parameter in peft.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(dtype) * scale
    return peft


def test_beside_16_bit_weights_a_float32_lora_is_as_near_to_the_truth_as_peft_s(counted: list[int]) -> None:
    peft = keep_loras(adapted(torch.bfloat16), torch.float32, scale=0.1)
    truth = gradients(keep_loras(adapted(torch.bfloat16).double(), torch.float64, scale=0.1))
    stock = gradients(peft)
    join_products(peft, Segments())
    joined = gradients(peft)
    assert len(counted) == 2 * 7
    assert all(one.dtype == stock[name].dtype for name, one in joined.items())

    def error(found: dict[str, torch.Tensor]) -> float:
        return sum(float((found[name] - one).norm() / one.norm()) for name, one in truth.items()) / len(truth)

    assert error(joined) < 1.5 * error(stock) < 0.1


@pytest.mark.parametrize("case", ["several", "dropout", "merged", "mixed precision", "disabled", "dora"])
def test_other_cases_stay_peft_s_own(counted: list[int], case: str) -> None:
    options = {"dropout": {"lora_dropout": 0.5}, "dora": {"use_dora": True}}.get(case, {})
    peft = adapted(torch.float32, **options)
    peft.train(case == "dropout")
    if case == "several":
        peft.base_model.set_adapter(["a1", "a2"])
    if case == "merged":
        peft.merge_adapter()
        peft.get_input_embeddings().weight.requires_grad_()
    if case == "mixed precision":
        keep_loras(peft, torch.float64)
    if case == "disabled":
        peft.base_model.disable_adapter_layers()
        peft.get_input_embeddings().weight.requires_grad_()
    stock = gradients(peft)
    join_products(peft, Segments())
    assert_same(gradients(peft), stock, 0.0)
    assert not counted


def test_a_dropout_that_rests_does_not_hinder(counted: list[int]) -> None:
    peft = adapted(torch.float32, lora_dropout=0.5).eval()
    stock = gradients(peft)
    join_products(peft, Segments())
    assert_same(gradients(peft), stock, 1e-5)
    assert counted


def test_the_trainer_s_adapters_are_joined(counted: list[int]) -> None:
    tiny = policy()
    adapters = LoraAdapters(tiny)
    adapters.attach("a1", LoraSpec(r=3, alpha=6), seed=0)
    tiny.row_logprobs([[1, 2, 3]])
    assert len(counted) == 2 * 7
    with adapters.disabled():
        tiny.row_logprobs([[1, 2, 3]])
    assert len(counted) == 2 * 7
