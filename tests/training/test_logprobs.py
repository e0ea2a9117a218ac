from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_policies import SHAPE, causal_lm, policy
from transformers import CohereConfig, Gemma2Config, GraniteConfig, LlamaConfig, PreTrainedConfig

from art.training.logprobs import LogitHead, row_figures, target_logprobs


def inputs(rows: int = 7) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
    tiny = policy(dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    hidden_PD = torch.randn(rows, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    return tiny.head, hidden_PD, torch.tensor([0, 0, 2, 3, 3, 3, 6]), torch.tensor([1, 2, 3, 4, 5, 5, 6])


def test_against_log_softmax() -> None:
    head, hidden_PD, predictor_N, id_N = inputs()
    logprob_N, entropy_P = target_logprobs(head, hidden_PD, predictor_N, id_N)
    exact_PV = torch.log_softmax(head(hidden_PD), -1)
    assert torch.allclose(logprob_N, exact_PV[predictor_N, id_N], rtol=1e-12)
    assert torch.allclose(entropy_P, -(exact_PV.exp() * exact_PV).sum(-1), rtol=1e-10)
    assert not entropy_P.requires_grad


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_chunks_change_neither_values_nor_gradients(rows: int) -> None:
    head, hidden_PD, predictor_N, id_N = inputs()
    whole = target_logprobs(head, hidden_PD, predictor_N, id_N)
    pieces = target_logprobs(head, hidden_PD, predictor_N, id_N, chunk_elements=rows * SHAPE["vocab_size"])
    assert all(
        torch.equal(a, b) or torch.allclose(a, b, rtol=1e-13) for a, b in zip(whole, pieces, strict=True)
    )
    weight = torch.arange(1.0, 8.0, dtype=torch.float64)
    (one,) = torch.autograd.grad((whole[0] * weight).sum(), hidden_PD)
    (other,) = torch.autograd.grad((pieces[0] * weight).sum(), hidden_PD)
    assert torch.allclose(one, other, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**SHAPE, final_logit_softcapping=5.0, query_pre_attn_scalar=8),
        GraniteConfig(**SHAPE, logits_scaling=3.0),
        CohereConfig(**SHAPE, logit_scale=0.3),
    ],
    ids=["gemma2", "granite", "cohere"],
)
def test_each_family_scales_its_logits_as_its_own_forward_does(config: PreTrainedConfig) -> None:
    model = causal_lm(config, "eager", torch.float32)
    model.eval()
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        hidden = model.model(input_ids=ids).last_hidden_state
        assert torch.allclose(LogitHead(model)(hidden), model(input_ids=ids).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 100])
def test_a_head_that_is_trained_gets_its_gradient(rows: int) -> None:
    tiny = policy(dtype=torch.float64)
    weight = tiny.causal_lm.get_output_embeddings().weight.requires_grad_()
    _, hidden_PD, predictor_N, id_N = inputs()
    logprob_N, _ = target_logprobs(
        tiny.head, hidden_PD, predictor_N, id_N, chunk_elements=rows * SHAPE["vocab_size"]
    )
    slope_N = torch.arange(1.0, 8.0, dtype=torch.float64)
    got = torch.autograd.grad((logprob_N * slope_N).sum(), [hidden_PD, weight])
    exact_N = torch.log_softmax(hidden_PD @ weight.T, -1)[predictor_N, id_N]
    expected = torch.autograd.grad((exact_N * slope_N).sum(), [hidden_PD, weight])
    for one, other in zip(got, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("rows", [2, 100])
@pytest.mark.parametrize("config", [GraniteConfig(**SHAPE, logits_scaling=3.0), LlamaConfig(**SHAPE)])
def test_a_frozen_head_gives_the_gradient_of_autograd_without_its_logits(
    config: PreTrainedConfig, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = causal_lm(config, "eager", torch.float64)
    model.requires_grad_(False)
    head = LogitHead(model)
    _, hidden_PD, predictor_N, id_N = inputs()
    slope_N = torch.arange(1.0, 8.0, dtype=torch.float64)
    exact_N = torch.log_softmax(head(hidden_PD), -1)[predictor_N, id_N]
    (expected,) = torch.autograd.grad((exact_N * slope_N).sum(), hidden_PD)
    logprob_N, _ = target_logprobs(
        head, hidden_PD, predictor_N, id_N, chunk_elements=rows * SHAPE["vocab_size"]
    )
    monkeypatch.setattr(LogitHead, "__call__", None)  # the backward pass has no need of them
    (got,) = torch.autograd.grad((logprob_N * slope_N).sum(), hidden_PD)
    assert torch.allclose(got, expected, rtol=1e-11, atol=1e-14)


def test_soft_capped_logits_have_the_gradient_of_autograd() -> None:
    model = causal_lm(
        Gemma2Config(**SHAPE, final_logit_softcapping=5.0, query_pre_attn_scalar=8), "eager", torch.float64
    )
    model.requires_grad_(False)
    head = LogitHead(model)
    _, hidden_PD, predictor_N, id_N = inputs()
    logprob_N, _ = target_logprobs(head, hidden_PD, predictor_N, id_N, chunk_elements=46)
    (got,) = torch.autograd.grad(logprob_N.sum(), hidden_PD)
    exact_N = torch.log_softmax(head(hidden_PD), -1)[predictor_N, id_N]
    (expected,) = torch.autograd.grad(exact_N.sum(), hidden_PD)
    assert torch.allclose(got, expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0])
def test_norms_entropies_and_means_are_those_of_the_softmax_however_large_the_logits(scale: float) -> None:
    logits_CV = torch.randn(5, 40, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * scale
    weights_VD = torch.randn(40, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = row_figures(logits_CV, weights_VD)
    norm_C, entropy_C = found.norm_C, found.entropy_C
    exact_CV = torch.log_softmax(logits_CV, -1)
    assert torch.allclose(norm_C, logits_CV.logsumexp(-1), rtol=1e-14)
    assert torch.allclose(entropy_C, -(exact_CV.exp() * exact_CV).sum(-1), rtol=1e-9, atol=1e-11)
    assert found.mean_CD is not None and row_figures(logits_CV).mean_CD is None
    assert torch.allclose(found.mean_CD, exact_CV.exp() @ weights_VD, rtol=1e-11, atol=1e-13)
    assert bool((entropy_C > -1e-11).all())
