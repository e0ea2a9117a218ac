"""Under bfloat16 the output layer computes in float32: in the trainer, in the builtin engine, and alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_policies import SHAPE, causal_lm, policy
from transformers import Gemma2Config, PreTrainedConfig, Qwen3Config

from art.engine import nano_models
from art.engine.builtin.decoder import Decoder
from art.engine.builtin.model import CausalModel, load_model
from art.engine.builtin.output_layer import WideLinear, pieces_of, product
from art.engine.builtin.step_batch import PackedAttention, fresh_part
from art.training.logprobs import LogitHead, target_logprobs
from art.training.policy import load_policy
from art.wire.engine import BuiltinOptions

UNTIED = Qwen3Config(**{**SHAPE, "tie_word_embeddings": False, "hidden_size": 64})


def exact(hidden_ND: torch.Tensor, weight_VD: torch.Tensor) -> torch.Tensor:
    """The product in float32 of what is in bfloat16."""
    return hidden_ND.float() @ weight_VD.float().T


def hidden_states(size: int, rows: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return (3 * torch.randn(rows, size, generator=generator)).bfloat16()


@pytest.mark.parametrize("config", [Qwen3Config(**SHAPE), UNTIED], ids=["tied", "untied"])
def test_the_trainers_logprobs_are_those_of_the_float32_product(config: PreTrainedConfig) -> None:
    made = policy(config, dtype=torch.bfloat16)
    weight_VD = made.causal_lm.get_output_embeddings().weight
    hidden_ND = hidden_states(config.hidden_size).requires_grad_()
    rows_N, ids_N = torch.arange(40), torch.arange(40) % SHAPE["vocab_size"]
    found_N, entropy_N = target_logprobs(made.head, hidden_ND, rows_N, ids_N)
    expected_NV = exact(hidden_ND, weight_VD).log_softmax(-1)
    assert found_N.dtype == torch.float32
    assert (found_N - expected_NV[rows_N, ids_N]).abs().max().item() < 1e-5
    assert (entropy_N + (expected_NV.exp() * expected_NV).sum(-1)).abs().max().item() < 1e-4
    # What the layer's own product gives is another thing.
    rounded_NV = torch.nn.functional.linear(hidden_ND, weight_VD).float().log_softmax(-1)
    assert (rounded_NV - expected_NV)[rows_N, ids_N].abs().max().item() > 1e-3

    slope_N = torch.linspace(-1, 1, 40)
    (got,) = torch.autograd.grad((found_N * slope_N).sum(), hidden_ND)
    (wanted,) = torch.autograd.grad((expected_NV[rows_N, ids_N] * slope_N).sum(), hidden_ND)
    assert float((got.float() - wanted.float()).norm() / wanted.float().norm()) < 1e-2


def test_tied_weights_stay_one_tensor_and_their_gradient_is_that_of_the_product() -> None:
    made = causal_lm(Qwen3Config(**SHAPE), "eager", torch.bfloat16)
    head = LogitHead(made)
    layer = made.get_output_embeddings()
    assert isinstance(layer, WideLinear) and layer.weight is made.get_input_embeddings().weight
    hidden_ND = hidden_states(SHAPE["hidden_size"])
    (got,) = torch.autograd.grad(head(hidden_ND).square().sum(), layer.weight)
    twin = layer.weight.detach().float().requires_grad_()
    (wanted,) = torch.autograd.grad((hidden_ND.float() @ twin.T).square().sum(), twin)
    assert got.dtype == torch.bfloat16
    assert float((got.float() - wanted).norm() / wanted.norm()) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_exact_model_is_left_as_it_is(dtype: torch.dtype) -> None:
    assert type(policy(dtype=dtype).causal_lm.get_output_embeddings()) is torch.nn.Linear


@pytest.mark.parametrize("chunk", [1, 48, 1000])
def test_chunks_of_the_vocabulary_change_nothing(chunk: int) -> None:
    weight_VD = torch.randn(23, 16).bfloat16()
    whole, pieces = exact(hidden_states(16), weight_VD), pieces_of(23, 16, chunk=chunk)
    assert (len(pieces) == 1) == (chunk == 1000) and max(one.stop - one.start for one in pieces) <= 23
    assert torch.allclose(product(hidden_states(16), weight_VD, pieces), whole, rtol=1e-5, atol=1e-5)


def test_a_family_that_caps_its_logits_caps_them_in_float32() -> None:
    config = Gemma2Config(**SHAPE, final_logit_softcapping=5.0, query_pre_attn_scalar=8)
    made = causal_lm(config, "eager", torch.bfloat16)
    hidden_ND = hidden_states(SHAPE["hidden_size"])
    wanted = 5 * (exact(hidden_ND, made.get_output_embeddings().weight) / 5).tanh()
    assert (LogitHead(made)(hidden_ND) - wanted).abs().max().item() < 1e-5


def forwarded(model: CausalModel, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of each of the ids, the hidden states that they were made of, and the output layer's weights."""
    seen: list[Any] = []
    assert isinstance(model.passes, Decoder)
    layer = model.passes._head
    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    positions = torch.arange(len(ids))
    attention = PackedAttention([fresh_part(np.array([len(ids)]), model.device)])
    with torch.inference_mode():
        logits = model.forward(
            torch.tensor(ids), positions, positions, np.zeros(len(ids), np.int64), attention
        )
    hook.remove()
    return logits, seen[0], layer.weight


@pytest.mark.slow
def test_the_engine_samples_from_the_float32_product_and_the_trainer_computes_the_same() -> None:
    folder = str(nano_models.resolve("art/nano-games"))
    engine = load_model(folder, BuiltinOptions(device="cpu", dtype="bfloat16"))
    ids = [(7 * number + 3) % engine.vocab_size for number in range(60)]
    logits, hidden_ND, weight_VD = forwarded(engine, ids)
    expected = exact(hidden_ND, weight_VD).log_softmax(-1)
    assert logits.dtype == torch.float32 and engine.dtype == torch.bfloat16
    next_N = torch.tensor(ids[1:])[:, None]
    assert float((logits.log_softmax(-1) - expected)[:-1].gather(1, next_N).abs().max()) < 1e-5
    rounded = torch.nn.functional.linear(hidden_ND, weight_VD).float().log_softmax(-1)
    assert float((rounded - expected)[:-1].gather(1, next_N).abs().max()) > 1e-3
    # What is scored, and the trainer's head on the same hidden states.
    with torch.inference_mode():
        scored = torch.tensor(engine.score(0, [ids])[0])
    assert float((scored - expected[:-1].gather(1, next_N)[:, 0]).abs().max()) < 1e-5
    trained = load_policy(folder, name="nano", dtype="bfloat16").head(hidden_ND)
    assert float((trained.log_softmax(-1) - expected).abs().max()) < 1e-5
