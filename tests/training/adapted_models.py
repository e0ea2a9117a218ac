"""Adapters of tiny models by family: gradients in rows and packed, a checkpoint, completions under it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tests.training.families import FAMILIES, build
from tests.training.tiny_policies import nodes_to, randomize

from art.batch.batch_types import Batch
from art.engine.builtin.engine import BuiltinEngine
from art.engine.protocol import GenerateRequest, Sampling
from art.training.lora import LoraAdapters
from art.training.policy import Policy, load_policy
from art.training.trainer import Trainer
from art.wire.engine import BuiltinOptions
from art.wire.training import LoraSpec

Result = tuple[torch.Tensor, dict[str, torch.Tensor]]
"""The logprob of each entry; the gradients by the names of the adapter's matrices."""


def weights(batch: Batch) -> torch.Tensor:
    """A gradient for each entry, all different."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(len(batch.entries), generator=generator, dtype=torch.float64)


def in_rows(name: str, batch: Batch, config: LoraConfig) -> Result:
    """Each trained path as a row of its own through the stock model and PEFT: nothing of our code."""
    model = get_peft_model(build(FAMILIES[name](), "eager", torch.float64), config).eval()
    trained = {key.replace(".default.", "."): p for key, p in model.named_parameters() if "lora_" in key}
    randomize(trained)
    nodes = batch.entries.token_E.tolist()
    found: dict[int, torch.Tensor] = {}
    for leaf in sorted(set(nodes), key=lambda node: -int(batch.tree.depth_T[node])):
        if leaf in found:
            continue
        on_path = nodes_to(batch.tree, leaf)
        ids = torch.as_tensor(batch.tree.tokens_T[on_path].astype("int64"))
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits, -1)[:-1].gather(1, ids[1:, None])[:, 0]
        found |= {node: logprobs[at] for at, node in enumerate(on_path[1:]) if node not in found}
    scores = torch.stack([found[node] for node in nodes])
    (scores * weights(batch)).sum().backward()
    return scores.detach(), {key: p.grad for key, p in trained.items() if p.grad is not None}


def packed(policy: Policy, batch: Batch, spec: LoraSpec) -> tuple[Result, LoraAdapters]:
    """The same by our trainer, of a policy in float64, in micro-batches of at most 60 tokens."""
    adapters = LoraAdapters(policy)
    adapters.attach("a1", spec, seed=0)
    trained = adapters.parameters("a1")
    randomize(trained)
    scores = torch.zeros(len(batch.entries), dtype=torch.float64)
    weight = weights(batch)
    for micro in policy.pack(batch.tree, batch.entries, 60).micro_batches:
        got, _ = policy.entry_scores(micro)
        scores[micro.entry_E] = got.logprobs_E.detach()
        (got.logprobs_E * weight[micro.entry_E]).sum().backward()
    return (scores, {key: p.grad for key, p in trained.items() if p.grad is not None}), adapters


def trained(name: str, folder: Path, spec: LoraSpec) -> tuple[Trainer, Path, Path]:
    """The family's model as a folder, a trainer on it with a random adapter, and that as a checkpoint."""
    base, checkpoint = folder / "base", folder / "0001"
    build(FAMILIES[name](), "eager", torch.float32).save_pretrained(base)
    trainer = Trainer(load_policy(str(base), name=name), token_budget=200)
    trainer.open("p/m", spec)
    randomize(trainer._open["p/m"].parameters)
    trainer.save("p/m", checkpoint)
    return trainer, base, checkpoint


async def sampled(base: Path, adapter: Path) -> list[tuple[list[int], list[float]]]:
    """Prompts and completions under the adapter, as ids, and the logprobs of the completions. Prompts of
    several lengths behind a shared beginning, so that all of the engine's paths are walked.
    """
    shared = [(7 * at + 3) % 23 for at in range(9)]
    prompts = [shared + [(5 * n + at) % 23 for at in range(n)] for n in range(5)]
    engine = await BuiltinEngine.start(str(base), BuiltinOptions(threads=1))
    try:
        await engine.load_adapter("m@1", adapter)

        async def one(number: int, prompt: list[int]) -> tuple[list[int], list[float]]:
            ids: list[int] = []
            logprobs: list[float] = []
            request = GenerateRequest(
                request_id=str(number),
                adapter="m@1",
                prompt_ids=prompt,
                sampling=Sampling(max_tokens=12, seed=number),
            )
            async for delta in engine.generate(request):
                ids += delta.token_ids
                logprobs += delta.logprobs
            return prompt + ids, logprobs

        return await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
    finally:
        await engine.close()


def check_agreement(rows: list[tuple[list[int], list[float]]], scores: list[list[float]]) -> None:
    """rows: of `sampled`. scores: the trainer's, of the same ids."""
    differences = [
        abs(ours - theirs)
        for (_, logprobs), row in zip(rows, scores, strict=True)
        for ours, theirs in zip(row[-len(logprobs) :], logprobs, strict=True)
    ]
    assert len(differences) > 40 and max(differences) <= 1e-4
