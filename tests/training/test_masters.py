"""All weights of a bfloat16 model: trained in float32, whatever the model computes in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_policies import MODEL, games, policy, request
from transformers import AutoModelForCausalLM

from art.training.trainer import Trainer
from art.training.weights import Weights
from art.wire.training import LoraSpec

ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 9]]
OTHER = "project/other"


def opened() -> Trainer:
    made = Trainer(policy(dtype=torch.bfloat16), token_budget=64)
    made.open(MODEL, None)
    return made


def learn(made: Trainer, steps: range, learning_rate: float = 1e-3) -> None:
    for step in steps:
        batch = games(step)
        made.train(batch.tree, batch.entries, request(batch, step, learning_rate=learning_rate))


@pytest.mark.slow
def test_updates_too_small_for_bfloat16_add_up() -> None:
    made = opened()
    start = {name: p.detach().clone() for name, p in made.parameters(MODEL).items()}
    learn(made, range(3), learning_rate=1e-6)
    for name, parameter in made.parameters(MODEL).items():
        assert parameter.dtype == torch.float32
        assert 0 < (parameter.detach() - start[name]).abs().max() < 1e-5, name
        computing = made.policy.causal_lm.get_parameter(name)
        assert computing.dtype == torch.bfloat16 and computing.grad is None
        assert torch.equal(computing, parameter.detach().to(torch.bfloat16))


@pytest.mark.slow
def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    tiny = policy(dtype=torch.bfloat16)
    made = Weights(tiny)
    made.attach("a1", None, seed=0)
    trained = made.parameters("a1")
    batch = games(1)
    micro_batches = tiny.pack(batch.tree, batch.entries, 40).micro_batches
    assert len(micro_batches) > 2

    def gradients(one_by_one: bool) -> list[dict[str, torch.Tensor]]:
        found = []
        for micro in micro_batches:
            tiny.entry_scores(micro)[0].logprobs_E.sum().backward()
            found.append({name: p.grad.clone() for name, p in trained.items() if p.grad is not None})
            for parameter in trained.values() if one_by_one else ():
                parameter.grad = None
        return found

    single, together = gradients(one_by_one=True), gradients(one_by_one=False)[-1]
    assert together.keys() == trained.keys()
    coarser = 0
    for name, total in together.items():
        exact, rounded = torch.zeros_like(total), torch.zeros_like(total, dtype=torch.bfloat16)
        for part in single:
            exact += part[name]
            rounded += part[name].to(torch.bfloat16)
        assert torch.equal(total, exact), name
        coarser += not torch.equal(total, rounded.float())
    assert coarser, "in bfloat16 the sums would be others"


@pytest.mark.slow
def test_a_run_resumes_to_the_same_bytes_beside_a_lora(tmp_path: Path) -> None:
    straight = opened()
    learn(straight, range(2))
    straight.save(MODEL, tmp_path / "0002")
    learn(straight, range(2, 4))
    straight.save(MODEL, tmp_path / "straight")
    again = opened()
    again.open(OTHER, LoraSpec(r=2))
    again.open(MODEL, None, checkpoint=tmp_path / "0002")
    learn(again, range(2, 3))
    again.score(OTHER, ROWS)
    learn(again, range(3, 4))
    again.save(MODEL, tmp_path / "resumed")
    for file in (tmp_path / "straight").iterdir():
        assert file.read_bytes() == (tmp_path / "resumed" / file.name).read_bytes(), file.name
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "resumed")
    assert stock.dtype == torch.bfloat16, "loaded as what it computed in"
    again.close(MODEL)
    assert again.score(OTHER, ROWS) == policy(dtype=torch.bfloat16).row_logprobs(ROWS)
