"""A base model in 4 or 8 bits: trained with a LoRA, and sampled from by the same arithmetic."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_policies import MODEL, games, randomize, request

from art.engine.builtin.engine import BuiltinEngine
from art.engine.builtin.quantized import is_quantized, unpacked_weight
from art.engine.nano_models import resolve
from art.engine.protocol import GenerateRequest, Sampling
from art.errors import CheckpointError, ConfigurationError
from art.training.policy import load_policy
from art.training.trainer import Trainer
from art.wire.engine import BuiltinOptions
from art.wire.records import Bits
from art.wire.training import LoraSpec

pytestmark = pytest.mark.slow
BASE = str(resolve("art/nano-games"))
LORA = LoraSpec(r=4, alpha=8)
OPTIONS = BuiltinOptions(threads=1, device="cpu")
LIMIT = {4: 1e-4, 8: 2e-2}
"""Of |engine - trainer|: in 8 bits activations are rounded, and a last digit decides between two steps."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def quantized_trainer(bits: Bits) -> Trainer:
    name = f"art/nano-games#{bits}bit" if bits != 16 else "art/nano-games"
    return Trainer(load_policy(BASE, name=name, bits=bits), token_budget=64)


def linear_of(trainer: Trainer) -> list[torch.nn.Module]:
    return [one for one in trainer.policy.causal_lm.modules() if is_quantized(one)]


@pytest.mark.parametrize("bits", [4, 8])
async def test_the_sampler_agrees_with_the_trainer(bits: Bits, tmp_path: Path) -> None:
    """With two adapters and the base in one batch, over several steps of the engine."""
    trainer = quantized_trainer(bits)
    folders = {}
    for seed in (1, 2):
        trainer.open(f"p/m{seed}", LORA, seed=seed)
        randomize(trainer.parameters(f"p/m{seed}"), seed)
        folders[f"m{seed}@1"] = tmp_path / f"{seed:04d}"
        trainer.save(f"p/m{seed}", folders[f"m{seed}@1"])
    engine = await BuiltinEngine.start(BASE, OPTIONS, bits=bits)
    try:
        for name, folder in folders.items():
            await engine.load_adapter(name, folder)

        async def sampled(number: int, adapter: str | None) -> tuple[list[int], list[int], list[float]]:
            prompt = [(5 * number + 3 * at) % 60 for at in range(9 + number)]
            ids: list[int] = []
            logprobs: list[float] = []
            asked = GenerateRequest(
                request_id=str(number),
                adapter=adapter,
                prompt_ids=prompt,
                sampling=Sampling(max_tokens=12, seed=number),
            )
            async for delta in engine.generate(asked):
                ids += delta.token_ids
                logprobs += delta.logprobs
            return prompt, ids, logprobs

        adapters = [*folders, None, *folders, None]
        rows = await asyncio.gather(*(sampled(n, adapter) for n, adapter in enumerate(adapters)))
        (base,) = await engine.score(None, [rows[0][0] + rows[0][1]])
    finally:
        await engine.close()
    assert not engine.health().own_pass
    for (prompt, ids, logprobs), adapter in zip(rows, adapters, strict=True):
        if adapter is not None:
            (scores,) = trainer.score(f"p/{adapter.partition('@')[0]}", [prompt + ids])
            assert logprobs == pytest.approx(scores[-len(ids) :], abs=LIMIT[bits])
    assert max(abs(a - b) for a, b in zip(base[-12:], rows[0][2], strict=True)) > 0.1  # the adapter acts


@pytest.mark.parametrize("bits", [4, 8])
def test_a_lora_on_a_quantized_base_learns_and_resumes(bits: Bits, tmp_path: Path) -> None:
    trainer = quantized_trainer(bits)
    trainer.open(MODEL, LORA)
    packed = [one.weight.detach().clone() for one in linear_of(trainer)]
    assert len(packed) == 3 * 7
    batch = games(vocabulary=60)
    before = trainer.score(MODEL, [list(range(20))])
    for step in range(3):
        metrics = trainer.train(batch.tree, batch.entries, request(batch, step))
        assert metrics["loss/grad_norm"] > 0 and metrics["memory/planned_mb"] > 0
    after = trainer.score(MODEL, [list(range(20))])
    assert before != after
    assert all(torch.equal(one.weight, old) for one, old in zip(linear_of(trainer), packed, strict=True))
    trainer.save(MODEL, tmp_path / "0003")
    again = quantized_trainer(bits)
    assert again.open(MODEL, LORA, checkpoint=tmp_path / "0003") == 3
    assert again.score(MODEL, [list(range(20))]) == after
    with pytest.raises(CheckpointError, match="was trained on 'art/nano-games#"):
        quantized_trainer(16).open(MODEL, LORA, checkpoint=tmp_path / "0003")


@pytest.mark.parametrize(("bits", "near"), [(4, 0.2), (8, 0.02)])
def test_a_quantized_weight_is_near_its_own_and_its_gradient_is_that_of_the_unpacked(
    bits: Bits, near: float
) -> None:
    own, quantized = quantized_trainer(16).policy.causal_lm, quantized_trainer(bits).policy.causal_lm
    name = "model.layers.1.mlp.down_proj"
    exact, packed = own.get_submodule(name).weight, quantized.get_submodule(name)
    unpacked = unpacked_weight(packed)
    assert 0 < (unpacked - exact).norm() <= near * exact.norm()
    x = torch.randn(5, exact.shape[1], requires_grad=True)
    packed(x).square().sum().backward()
    y = x.detach() @ unpacked.t()
    torch.testing.assert_close(x.grad, 2 * y @ unpacked, rtol=0.05, atol=0.05 * float(y.abs().max()))


def test_a_token_is_computed_the_same_with_and_without_a_gradient_and_in_any_company() -> None:
    model = quantized_trainer(4).policy.causal_lm
    ids = torch.arange(30)[None] % 60
    with torch.no_grad():
        alone, together = model(input_ids=ids[:, :1]).logits, model(input_ids=ids).logits
    assert torch.equal(model(input_ids=ids).logits, together)
    torch.testing.assert_close(alone, together[:, :1], rtol=0, atol=1e-4)


def test_all_weights_of_a_quantized_base_are_not_trained() -> None:
    with pytest.raises(ConfigurationError, match="#4bit' are quantized and cannot be trained"):
        quantized_trainer(4).open(MODEL, None)
    with pytest.raises(ConfigurationError, match="quantizes in its own way"):
        load_policy(BASE, name="nano", bits=4, accelerator="unsloth")


@pytest.mark.extension
@pytest.mark.parametrize("bits", [4, 8])
def test_a_merged_model_computes_what_was_trained(bits: Bits, tmp_path: Path) -> None:
    from art_extensions.publish.merge_messages import MergeRequest
    from art_extensions.publish.merging.merge import merge

    trainer = quantized_trainer(bits)
    trainer.open(MODEL, LORA)
    randomize(trainer.parameters(MODEL))
    trainer.save(MODEL, tmp_path / "0000")
    merged = tmp_path / "merged"
    reply = merge(
        MergeRequest(checkpoint=str(tmp_path / "0000"), base_model="art/nano-games", to=str(merged))
    )
    assert reply.dtype == "float32" and reply.difference is not None
    rows = [[(7 * at + 3) % 60 for at in range(30)]]
    limit = {4: 1e-3, 8: 0.1}[bits]  # in 8 bits, activations were rounded too
    written = load_policy(str(merged), name="merged").row_logprobs(rows)[0]
    assert written == pytest.approx(trainer.score(MODEL, rows)[0], abs=limit)
    (config,) = merged.glob("config.json")
    assert "quantization_config" not in config.read_text()


def test_a_trainer_of_a_plain_folder_does_without_bitsandbytes() -> None:
    """PEFT loads it wherever it is installed, which costs seconds of each start."""
    program = (
        "import sys; from art.training.worker import load_trainer; from art.wire.training import *; "
        f"trainer = load_trainer(TrainerConfig(base_model='nano', model_path={BASE!r}, key='-' * 16)); "
        "trainer.open('p/m', LoraSpec()); print(sys.modules['bitsandbytes'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.strip() == "None", done.stderr
