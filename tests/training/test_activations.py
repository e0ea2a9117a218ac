"""Layers that are computed again in the backward pass give the same loss and gradient from less memory."""

from __future__ import annotations

import pytest
import torch
from tiny_policies import games, llama, policy, qwen3, randomize
from transformers import PreTrainedConfig

from art.training.causal_lm import decoder_layers, recomputed
from art.training.lora import LoraAdapters
from art.training.policy import Policy
from art.wire.training import LoraSpec


def gradients(
    tiny: Policy, trained: dict[str, torch.nn.Parameter]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    batch = games(2)
    torch.manual_seed(5)  # of LoRA's dropout
    for parameter in trained.values():
        parameter.grad = None
    total = torch.zeros((), dtype=tiny.dtype)
    for micro in tiny.pack(batch.tree, batch.entries, 80).micro_batches:
        scores, _ = tiny.entry_scores(micro)
        advantage_E = torch.as_tensor(batch.entries.advantage_E[micro.entry_E], dtype=tiny.dtype)
        loss = (scores.logprobs_E * advantage_E).sum()
        loss.backward()
        total += loss.detach()
    return total, {name: p.grad.clone() for name, p in trained.items() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["rectangles", "dense"])
@pytest.mark.parametrize("config", [qwen3(), llama()], ids=["qwen3", "llama"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_the_same(config: PreTrainedConfig, attention: str, dropout: float) -> None:
    tiny = policy(config, attention=attention, dtype=torch.float64)
    adapters = LoraAdapters(tiny)
    adapters.attach("a1", LoraSpec(r=3, alpha=6, dropout=dropout), seed=0)
    trained = adapters.parameters("a1")
    randomize(trained)
    adapters.activate("a1", dropout=dropout > 0)
    loss, whole = gradients(tiny, trained)
    tiny.checkpoint_activations = True
    same_loss, again = gradients(tiny, trained)
    assert torch.equal(loss, same_loss)
    assert whole.keys() == again.keys() == trained.keys()
    for name, gradient in whole.items():
        assert gradient.norm() > 0
        assert (again[name] - gradient).norm() <= 1e-12 * gradient.norm(), name
    assert not any(module.training for module in tiny.layers), "no dropout of the base model is switched on"


def test_layers_keep_their_inputs_only() -> None:
    tiny = policy(dtype=torch.float32)
    LoraAdapters(tiny).attach("a1", LoraSpec(r=3, alpha=6), seed=0)
    batch = games(2)
    (micro, *_) = tiny.pack(batch.tree, batch.entries, 80).micro_batches

    def saved_bytes() -> int:
        storages: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            scores, _ = tiny.entry_scores(micro)
        scores.logprobs_E.sum().backward()
        weights = {p.untyped_storage().data_ptr() for p in tiny.causal_lm.parameters()}
        return sum(size for at, size in storages.items() if at not in weights)

    everything = saved_bytes()
    tiny.checkpoint_activations = True
    assert saved_bytes() < everything / 4


def test_the_layers_are_as_before_afterwards() -> None:
    tiny = policy()
    layers = decoder_layers(tiny.causal_lm)
    assert [type(layer).__name__ for layer in layers] == ["Qwen3DecoderLayer"] * 2
    layers[0].forward = own = layers[0].forward
    with recomputed(layers), recomputed(layers):
        assert "forward" in vars(layers[1])
    assert vars(layers[0])["forward"] is own and "forward" not in vars(layers[1])
