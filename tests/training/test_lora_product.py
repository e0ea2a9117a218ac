"""A LoRA as one operation computes what PEFT's own module does, and leaves to it what it cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_policies import causal_lm, llama, policy

from art.training import lora_product
from art.training.lora import LoraAdapters
from art.training.lora_product import join_products
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
    hidden.pow(2).sum().backward()
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
    join_products(peft)
    assert not counted
    assert_same(gradients(peft), stock, 1e-12)
    assert len(counted) == 2 * 7


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
        for name, parameter in peft.named_parameters():
            if ".lora_" in name:
                parameter.data = parameter.data.double()
    if case == "disabled":
        peft.base_model.disable_adapter_layers()
        peft.get_input_embeddings().weight.requires_grad_()
    stock = gradients(peft)
    join_products(peft)
    assert_same(gradients(peft), stock, 0.0)
    assert not counted


def test_a_dropout_that_rests_does_not_hinder(counted: list[int]) -> None:
    peft = adapted(torch.float32, lora_dropout=0.5).eval()
    stock = gradients(peft)
    join_products(peft)
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
