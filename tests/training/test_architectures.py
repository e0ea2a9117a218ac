"""For each family, a tiny random model: a packed tree gives what plain rows through the stock model give, PEFT
loads the checkpoint and computes the same, and what cannot be done is refused with its reason.
"""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, all_in_float64, build
from peft import LoraConfig, get_peft_model
from tiny_policies import games, randomize

from art.samples.types import Batch
from art.training.lora import Adapters
from art.training.policy import Policy
from art.wire.training import LoraSpec

LORA = LoraSpec(r=3, alpha=6)
IN_ROWS = {
    "qwen3-next": "layers of type linear_attention",
    "jamba": "layers of type linear_attention",
    "falcon-h1": "layers of type hybrid",
    "lfm2": "layers of type conv",
    "llama4": "layers of type chunked_attention",
    "stablelm": "attends 0 times in 2 layers",
    "bloom": "does not let its attention be replaced",
}
ADAPTED = sorted(set(FAMILIES) - {"gpt2"})
Result = tuple[torch.Tensor, dict[str, torch.Tensor]]


def weights(batch: Batch) -> torch.Tensor:
    """A gradient for each entry, all different."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(len(batch.entries), generator=generator, dtype=torch.float64)


def path(batch: Batch, node: int) -> list[int]:
    ids = []
    while node >= 0:
        ids.append(int(batch.tree.tokens_T[node]))
        node = int(batch.tree.parent_T[node])
    return ids[::-1]


def in_rows(name: str, batch: Batch, targets: list[str]) -> Result:
    """Each entry's context as a row of its own through the stock model and PEFT: nothing of the tree's code."""
    config = LoraConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules=targets, task_type="CAUSAL_LM")
    model = get_peft_model(build(FAMILIES[name](), "eager", torch.float64), config).eval()
    trained = {key.replace(".default.", "."): p for key, p in model.named_parameters() if "lora_" in key}
    randomize(trained)
    logprobs = []
    for node in batch.entries.token_E.tolist():
        ids = torch.tensor(path(batch, node))
        logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0, -1]
        logprobs.append(torch.log_softmax(logits, -1)[ids[-1]])
    scores = torch.stack(logprobs)
    (scores * weights(batch)).sum().backward()
    return scores.detach(), {key: p.grad for key, p in trained.items() if p.grad is not None}


def packed(name: str, batch: Batch, budget: int, attention: str) -> tuple[Result, list[str], Policy]:
    policy = Policy(
        build(FAMILIES[name](), "eager", torch.float64), name=name, attention=attention, block=5, long=6
    )
    adapters = Adapters(policy)
    adapters.attach("a1", LORA, seed=0)
    trained = adapters.parameters("a1")
    randomize(trained)
    scores = torch.zeros(len(batch.entries), dtype=torch.float64)
    weight = weights(batch)
    for micro in policy.pack(batch.tree, batch.entries, budget).micro_batches:
        got, _ = policy.entry_scores(micro)
        scores[micro.entry_E] = got.logprobs_E.detach()
        (got.logprobs_E * weight[micro.entry_E]).sum().backward()
    gradients = {key: p.grad for key, p in trained.items() if p.grad is not None}
    return (scores, gradients), adapters.targets(LORA), policy


@pytest.mark.parametrize("attention", ["rectangles", "dense"])
@pytest.mark.parametrize("name", ADAPTED)
def test_packed_equals_unpacked_in_float64(name: str, attention: str) -> None:
    batch = games(1, groups=2, size=3)
    with all_in_float64():
        got, targets, policy = packed(name, batch, 60, attention)
        wanted = in_rows(name, batch, targets)
    assert (got[0] - wanted[0]).abs().max() <= 1e-10
    assert got[1].keys() == wanted[1].keys() and len(got[1]) >= 4
    for key, gradient in wanted[1].items():
        assert (got[1][key] - gradient).norm() <= 1e-10 * gradient.norm() + 1e-14, key
    assert (policy.rows_because is not None) == (name in IN_ROWS)
