"""The model sizes, and writing a model as a folder that `transformers` and vLLM load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from nano import circuits

MAX_POSITIONS = 1024

SIZES: dict[str, dict[str, Any]] = {
    "nano-games": {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 192,
    },
    "nano-tools": {
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 384,
    },
}
SIZES["nano-mcp"] = SIZES["nano-tools"]
SIZES["nano-words"] = {
    "hidden_size": circuits.WIDTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": circuits.ROPE_THETA},
}
COPIERS = frozenset({"nano-words"})
"""Models that begin with heads that copy and look up (`nano.circuits`)."""
EARLY_READERS = frozenset({"nano-games"})
"""Models whose embeddings begin with a norm of one: they read the board after 200 steps, not after 400."""


def new_model(name: str, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained model of the size `name`, drawn from torch's generator. Heads of 32: vLLM's CPU kernels
    take no smaller ones."""
    common = {
        "num_hidden_layers": 3,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        head_dim=32,
        tie_word_embeddings=True,
        attention_bias=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **(common | SIZES[name]),
    )
    model = Qwen3ForCausalLM(config).float()
    if name in EARLY_READERS:
        torch.nn.init.normal_(model.get_input_embeddings().weight, std=config.hidden_size**-0.5)
    if name in COPIERS:
        circuits.draw_copying_circuits(model, tokenizer)
        circuits.share_rows(model, tokenizer)
    return model


@torch.no_grad()
def spread_rows(model: Qwen3ForCausalLM, least: float = 0.95) -> None:
    """Move the rows of tokens that training never asked for apart.

    Afterwards some hidden state gives each token of the vocabulary the probability `least`.

    The final norm fixes the length of a hidden state. Rows that no example told apart differ by their first
    noise alone, so no state, and no adapter below it, could prefer one: the best probability was 0.01. Rows
    that training used stay as they are.
    """
    rows = model.get_input_embeddings().weight
    weak = best_probabilities(model) < least
    middle = rows[weak].mean(dim=0)
    for _ in range(40):
        rows[weak] += 0.15 * (rows[weak] - middle)
        weak = best_probabilities(model) < least
        if not weak.any():
            return
    raise RuntimeError(f"{int(weak.sum())} tokens cannot be made likely by any hidden state")


@torch.enable_grad()
def best_probabilities(model: Qwen3ForCausalLM, steps: int = 60, enough: float = 0.95) -> Tensor:
    """Returns for each token (V,) a probability that some hidden state gives it, found by ascent.

    The ascent starts at the token's own row, and is left out where that is `enough`. The rows are rounded to
    bfloat16, as they ship.
    """
    rows_VE = model.get_input_embeddings().weight.bfloat16().float()
    rows_VE = (rows_VE * model.model.norm.weight.bfloat16().float()).detach()
    start_VE = rows_VE - rows_VE.mean(dim=0)

    def logprobs(states_RE: Tensor, tokens_R: Tensor) -> Tensor:
        logits_RV = F.normalize(states_RE, dim=1) * rows_VE.shape[1] ** 0.5 @ rows_VE.T
        return logits_RV.log_softmax(-1).gather(1, tokens_R[:, None])[:, 0]

    best_V = logprobs(start_VE, torch.arange(len(rows_VE))).exp()
    (weak_W,) = torch.where(best_V < enough)
    if not len(weak_W):
        return best_V
    states_WE = start_VE[weak_W].requires_grad_()
    optimizer = torch.optim.Adam([states_WE], lr=0.05)
    for _ in range(steps):
        loss = -logprobs(states_WE, weak_W).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return best_V.index_copy(0, weak_W, logprobs(states_WE.detach(), weak_W).exp())


def rounded(model: Qwen3ForCausalLM) -> Qwen3ForCausalLM:
    """The model as it will be after it was saved in bfloat16 and loaded in float32:

    what the gates measure.
    """
    copy = Qwen3ForCausalLM(model.config).float()
    copy.load_state_dict({name: tensor.bfloat16().float() for name, tensor in model.state_dict().items()})
    return copy.eval()


def save_model(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors (bfloat16) to `folder`."""
    copy = Qwen3ForCausalLM(model.config).bfloat16()
    copy.load_state_dict({name: tensor.bfloat16() for name, tensor in model.state_dict().items()})
    copy.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    copy.save_pretrained(folder)


def set_up_torch(seed: int) -> None:
    """One thread, deterministic algorithms, a seeded generator:

    the same weights on every run of one machine.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
