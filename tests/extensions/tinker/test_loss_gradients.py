"""Gradients of an adapter by each of Tinker's losses: those of PEFT's own adapter on plain rows, datum by
datum, whether a batch comes in one request or in several; and a step of it is the trainer's own step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from loss_formulas import CASES, Formula, evaluate
from loss_requests import datum, read
from peft import LoraConfig, get_peft_model
from tests.training.tiny_policies import MODEL, VOCABULARY, causal_lm, policy, qwen3, randomize

from art.training.trainer import Trainer
from art.wire.training import LoraSpec, OptimizerSpec, StepRequest, TrainRequest
from art_extensions.tinker.batches import loss_batch
from art_extensions.tinker.forward_backward import ForwardBackwardCall

pytestmark = pytest.mark.slow

LORA = LoraSpec(r=3, alpha=6)
ADAM = OptimizerSpec(learning_rate=None, betas=(0.9, 0.95), eps=1e-12)
LENGTHS, SHARED = (9, 1, 14, 6, 12), 4
"""Of the datums; those that are long enough begin with the same ids."""
CLIPPED = ("ppo", "gspo")
"""A token that is clipped has no gradient."""
with_each_loss = pytest.mark.parametrize(
    ("formula", "config"), CASES, ids=[f"{one.__name__}-{number}" for number, (one, _) in enumerate(CASES)]
)


class PlainRows:
    """The stock model with PEFT's own adapter: nothing of the tree's code."""

    def __init__(self) -> None:
        stock = causal_lm(qwen3(), "sdpa", torch.float64)
        lora = LoraConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules=LORA.targets, task_type="CAUSAL_LM")
        self.model = get_peft_model(stock, lora).eval()
        self.trained = {
            name.replace(".default.", "."): one
            for name, one in self.model.named_parameters()
            if "lora_" in name
        }
        randomize(self.trained)

    def logprobs(self, input_ids: Any, targets: Any) -> torch.Tensor:
        """Of each target, in the shape of the targets."""
        ids, wanted = (torch.as_tensor(np.asarray(one), dtype=torch.long) for one in (input_ids, targets))
        all_logprobs = torch.log_softmax(self.model(input_ids=ids[None]).logits[0], -1)
        return all_logprobs.gather(1, wanted.reshape(len(ids), -1)).reshape(wanted.shape)


def trainer(budget: int) -> Trainer:
    made = Trainer(policy(dtype=torch.float64), token_budget=budget)
    made.open(MODEL, LORA)
    randomize(dict(made.parameters(MODEL)))
    return made


def make_requests(formula: Formula, config: dict[str, float], sizes: Sequence[int]) -> list[Any]:
    """The same ragged datums in requests of these sizes. Some targets are not the next input; logprobs that
    came lie near the model's own, so that some ratios are clipped and others not.
    """
    rng, plain, data = np.random.default_rng(7), PlainRows(), []
    for length in LENGTHS:
        shared = SHARED if length > SHARED else 0
        ids = np.concatenate([np.arange(shared), rng.integers(0, VOCABULARY, length - shared)])
        targets = np.append(ids[1:], rng.integers(0, VOCABULARY))
        targets[rng.random(length) < 0.3] = 7
        if formula.__name__ == "cross_entropy" and length == 6:
            targets = np.stack([targets, rng.integers(0, VOCABULARY, length)], 1)
        columns: dict[str, Any] = {"weights": rng.normal(size=targets.shape)}
        if formula.__name__ != "cross_entropy":
            with torch.no_grad():
                near = plain.logprobs(ids, targets).numpy() + 0.3 * rng.normal(size=length)
            mask = (rng.random(length) < 0.7).astype(np.float32)
            columns = {"logprobs": np.minimum(near, -0.01), "advantages": rng.normal(size=length)}
            if formula.__name__ == "gspo":
                columns["advantages"] *= mask
                columns["sequence_ratio_mask"] = mask
        data.append(datum(ids, target_tokens=targets, **columns))
    ends = np.cumsum([0, *sizes])
    return [read(*data[start:end], loss_fn=formula.__name__, config=config) for start, end in pairwise(ends)]


def train(made: Trainer, call: ForwardBackwardCall, *, step: int = 0, **fields: Any) -> dict[str, float]:
    batch = loss_batch(call)
    asked = TrainRequest(
        model=MODEL,
        step=step,
        algorithm=batch.algorithm,
        optimizer=ADAM,
        normalizer=batch.normalizer,
        **fields,
    )
    return made.train(batch.tree, batch.entries, asked)


@with_each_loss
@pytest.mark.parametrize("budget", [999, 16])
@pytest.mark.parametrize("sizes", [(5,), (2, 1, 2)], ids=["one-request", "three-requests"])
def test_added_gradients_are_those_of_plain_rows(
    formula: Formula, config: dict[str, float], budget: int, sizes: tuple[int, ...]
) -> None:
    calls, made, plain = make_requests(formula, config, sizes), trainer(budget), PlainRows()
    total = torch.zeros((), dtype=torch.float64)
    slopes = []
    for number, call in enumerate(calls):
        metrics = train(made, call, gradient="add", update=number)
        logprobs = [plain.logprobs(one.input_ids, one.targets) for one in call.data]
        loss = torch.stack(evaluate(formula, config, call, logprobs)).sum()
        assert metrics["loss/train"] == pytest.approx(loss.item(), rel=1e-10)
        slopes += [one.flatten() for one in torch.autograd.grad(loss, logprobs, retain_graph=True)]
        total = total + loss
    if formula.__name__ in CLIPPED:
        assert 0 < int((torch.cat(slopes) == 0).sum()) < len(torch.cat(slopes))
    total.backward()
    found = made.parameters(MODEL)
    assert found.keys() == plain.trained.keys() and len(found) == 2 * 7 * 2
    for name, one in plain.trained.items():
        assert one.grad.norm() > 0, name
        assert (found[name].grad - one.grad).norm() <= 1e-10 * one.grad.norm(), name


@with_each_loss
def test_a_batch_and_a_step_are_the_trainers_own_step(formula: Formula, config: dict[str, float]) -> None:
    """Weights, moments and norm, bit by bit, also of the step after it."""
    (call,) = make_requests(formula, config, (5,))
    apart, whole = trainer(16), trainer(16)
    for step in range(2):
        train(apart, call, step=step, gradient="add")
        asked = StepRequest(model=MODEL, step=step, batches=1, optimizer=ADAM, rate=1e-2)
        norm = apart.step(asked).grad_norm
        assert norm == train(whole, call, step=step, gradient="step", rate=1e-2)["loss/grad_norm"] > 0
        assert apart.steps == whole.steps == {MODEL: step + 1}
        for name, one in whole.parameters(MODEL).items():
            assert torch.equal(apart.parameters(MODEL)[name], one), name
            moments = [made._open[MODEL].optimizer.state for made in (apart, whole)]
            left, right = moments[0][apart.parameters(MODEL)[name]], moments[1][one]
            assert torch.equal(left["exp_avg"], right["exp_avg"]), name
            assert torch.equal(left["exp_avg_sq"], right["exp_avg_sq"]), name
