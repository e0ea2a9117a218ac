from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tiny_policies import SHAPE, games, policy, randomize
from transformers import Qwen3Config, Qwen3ForCausalLM

from art.errors import ConfigurationError
from art.training.causal_lm import PACKAGES, load_causal_lm
from art.training.lora import LoraAdapters
from art.training.optimizer import make_optimizer
from art.training.policy import Policy
from art.wire.training import LoraSpec, OptimizerSpec

GPU = torch.cuda.is_available()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**{**SHAPE, "vocab_size": 384, "head_dim": 16})).save_pretrained(path)
    return path


@pytest.mark.parametrize("accelerator", PACKAGES)
def test_without_a_gpu_it_is_refused_in_one_line(folder: Path, accelerator: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_causal_lm(str(folder), device="cpu", dtype="float32", accelerator=accelerator)  # type: ignore[arg-type]
    said = str(refused.value)
    assert accelerator in said and "needs a CUDA GPU" in said and "\n" not in said


@pytest.mark.gpu
@pytest.mark.parametrize("accelerator", ["none", *PACKAGES])
def test_an_accelerated_model_computes_what_the_plain_one_does(folder: Path, accelerator: str) -> None:
    if not GPU:
        pytest.skip("needs a CUDA device")
    if accelerator in PACKAGES and find_spec(PACKAGES[accelerator]) is None:
        pytest.skip(f"{PACKAGES[accelerator]} is not installed")
    plain = gradients(load_causal_lm(str(folder), device="cuda", dtype="float32", accelerator="none"))
    made = load_causal_lm(str(folder), device="cuda", dtype="float32", accelerator=accelerator)  # type: ignore[arg-type]
    for name, gradient in gradients(made).items():
        assert (gradient - plain[name]).norm() <= 1e-2 * plain[name].norm(), name


def gradients(causal_lm: torch.nn.Module) -> dict[str, torch.Tensor]:
    made = Policy(causal_lm, name="tiny")
    adapters = LoraAdapters(made)
    adapters.attach("a1", LoraSpec(r=4, alpha=8), seed=0)
    trained = adapters.parameters("a1")
    randomize(trained)
    batch = games(1)
    for micro in made.pack(batch.tree, batch.entries, 200).micro_batches:
        scores, _ = made.entry_scores(micro)
        advantage_E = torch.as_tensor(batch.entries.advantage_E[micro.entry_E], device=made.device)
        (scores.logprobs_E * advantage_E).sum().backward()
    return {name: p.grad for name, p in trained.items() if p.grad is not None}


@pytest.mark.slow
def test_a_bfloat16_base_has_float32_adapters_gradients_and_moments() -> None:
    exact = gradients(policy(dtype=torch.float32).causal_lm)
    rough = policy(dtype=torch.bfloat16)
    got = gradients(rough.causal_lm)
    assert {p.dtype for name, p in rough.causal_lm.named_parameters() if ".lora_" not in name} == {
        torch.bfloat16
    }
    whole = torch.cat([gradient.flatten() for gradient in exact.values()])
    other = torch.cat([got[name].flatten() for name in exact])
    assert other.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(whole, other, dim=0) > 0.98
    trained = [p for name, p in rough.causal_lm.named_parameters() if ".lora_" in name]
    optimizer = make_optimizer(trained, OptimizerSpec(learning_rate=1e-3))
    optimizer.step()
    moments = [m for state in optimizer.state.values() for m in state.values()]
    assert moments and {p.dtype for p in trained} | {m.dtype for m in moments} == {torch.float32}
