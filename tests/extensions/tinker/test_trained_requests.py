"""A request through the real trainer on a tiny random model: its logprobs and its loss are those of the model
on plain rows, each datum alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from loss_requests import datum, read
from transformers import AutoModelForCausalLM, Qwen3Config

from art.training.attention.interface import NAME, register
from art.training.policy import Policy
from art.training.trainer import Trainer
from art.wire.training import ComputeSpec, LoraSpec, OptimizerSpec, TrainRequest
from art_extensions.tinker.batches import loss_batch, per_datum
from art_extensions.tinker.forward_backward import ForwardBackwardCall
from art_extensions.tinker.loss_functions import elementwise_loss

SIZE = 23
CONFIG = Qwen3Config(
    vocab_size=SIZE,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=24,
    tie_word_embeddings=True,
)


def model(attention: str) -> Any:
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(CONFIG, attn_implementation=attention).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made.eval()


def plain_logprobs(call: ForwardBackwardCall) -> list[np.ndarray[Any, Any]]:
    plain, found = model("eager"), []
    for one in call.data:
        with torch.no_grad():
            logits = plain(input_ids=torch.from_numpy(one.input_ids).long()[None]).logits[0]
        targets = torch.from_numpy(one.targets).long().reshape(len(one.input_ids), -1)
        logprobs = torch.log_softmax(logits, -1).gather(1, targets)
        found.append(logprobs.reshape(one.targets.shape).numpy())
    return found


def trained(call: ForwardBackwardCall, budget: int) -> tuple[dict[str, float], list[np.ndarray[Any, Any]]]:
    register()
    trainer = Trainer(Policy(model(NAME), name="tiny", block=8, long=6), token_budget=budget)
    trainer.open("project/model", LoraSpec(r=2, alpha=4), seed=0)
    batch = loss_batch(call)
    request = TrainRequest(
        model="project/model",
        step=0,
        algorithm=batch.algorithm,
        optimizer=OptimizerSpec(learning_rate=1e-3),
        normalizer=batch.normalizer,
        compute=ComputeSpec(record_tokens="all"),
    )
    metrics = trainer.train(batch.tree, batch.entries, request)
    return metrics, list(per_datum(batch, trainer.token_columns("project/model", 0)["logprob"]))


def random_call(loss_fn: str, seed: int) -> ForwardBackwardCall:
    """Datums that share a beginning, most of whose targets are the next input, and some of which are not."""
    rng = np.random.default_rng(seed)
    data = []
    for length, shared in ((6, 0), (12, 4), (9, 6)):
        ids = np.concatenate([np.arange(shared), rng.integers(0, SIZE, length - shared)])
        targets = np.append(ids[1:], 1)
        targets[rng.random(length) < 0.3] = 7
        columns: dict[str, Any] = {"logprobs": -0.5 - 3 * rng.random(length)}
        columns["advantages"] = rng.normal(size=length)
        if loss_fn == "cross_entropy":
            targets = np.stack([targets, rng.integers(0, SIZE, length)], 1) if length == 9 else targets
            columns = {"weights": rng.normal(size=targets.shape) * (rng.random(targets.shape) < 0.7)}
        data.append(datum(ids, target_tokens=targets, **columns))
    return read(*data, loss_fn=loss_fn)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [9999, 24])
@pytest.mark.parametrize("loss_fn", ["cross_entropy", "importance_sampling"])
def test_logprobs_and_loss_are_those_of_plain_rows(loss_fn: str, budget: int) -> None:
    call = random_call(loss_fn, seed=3)
    metrics, found = trained(call, budget)
    plain = plain_logprobs(call)
    for ours, theirs in zip(found, plain, strict=True):
        assert np.allclose(ours, theirs, atol=1e-4)
    total = 0.0
    for one, logprobs in zip(call.data, plain, strict=True):
        columns = one.columns
        if loss_fn == "cross_entropy":
            total -= float((columns["weights"] * logprobs).sum())
        else:
            total -= float((np.exp(logprobs - columns["logprobs"]) * columns["advantages"]).sum())
    assert metrics["loss/train"] == pytest.approx(total, rel=1e-5)
    parts = [
        elementwise_loss(loss_fn, {}, one.columns, logprobs).sum()
        for one, logprobs in zip(call.data, found, strict=True)
    ]
    assert metrics["loss/train"] == pytest.approx(float(sum(parts)), rel=1e-5)
