"""Sampling of a Llama in plain torch: no server, no scheduler, no LoRA; what a fast loop does.

Projections of one input are joined, weights packed by oneDNN, prompts of one length. A plain model of the
task, written for the bench alone: it shares no code with the engine that it is compared with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu, softmax

PACKED_ROWS = 32
PREFILL_ROWS = 8
"""Prompts that are forwarded together."""
JOINED = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


class BareLoop:
    """B sequences, T tokens of each, H query and G key heads, D head size."""

    def __init__(self, model: Path) -> None:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        weights = {name: one.float() for name, one in load_file(model / "model.safetensors").items()}
        self._table = weights["model.embed_tokens.weight"]
        self._head = pack(weights.get("lm_head.weight", self._table))
        self._eps: float = config["rms_norm_eps"]
        self._heads: int = config["num_attention_heads"]
        self._groups: int = config["num_key_value_heads"]
        self._size: int = config["hidden_size"] // self._heads
        rope = config.get("rope_parameters") or config
        frequencies = rope["rope_theta"] ** -(torch.arange(0, self._size, 2) / self._size)
        angles = torch.outer(torch.arange(config["max_position_embeddings"]), frequencies)
        self._cos, self._sin = angles.cos(), angles.sin()
        self._norm = weights["model.norm.weight"]
        self._layers: list[tuple[Any, ...]] = []
        for number in range(config["num_hidden_layers"]):
            at = f"model.layers.{number}."
            packed = [pack(torch.cat([weights[f"{at}{one}.weight"] for one in names])) for names in JOINED]
            norms = (weights[f"{at}input_layernorm.weight"], weights[f"{at}post_attention_layernorm.weight"])
            self._layers.append((*norms, *packed))

    @torch.inference_mode()
    def sample(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        """Draws `new` tokens for each prompt, at temperature 1."""
        ids = torch.tensor(prompts)
        length = ids.shape[1]
        shape = (len(self._layers), 2, len(prompts), self._groups, length + new, self._size)
        cache = torch.empty(shape)
        parts = [slice(at, at + PREFILL_ROWS) for at in range(0, len(prompts), PREFILL_ROWS)]
        last = torch.cat([self._forward(ids[part], cache[:, :, part], 0) for part in parts])
        drawn = []
        for at in range(new):
            token = torch.multinomial(softmax(last, -1), 1)
            drawn.append(token)
            if at + 1 < new:
                last = self._forward(token, cache, length + at)
        return torch.cat(drawn, 1).tolist()

    def _forward(self, ids: Tensor, cache: Tensor, start: int) -> Tensor:
        """ids [B, T] -> logits [B, V] of each row's last token."""
        rows, count = ids.shape
        x = self._table[ids.flatten()]
        for number, (before, after, qkv, out, gate_up, down) in enumerate(self._layers):
            heads = times(rms_norm(x, x.shape[-1:], before, self._eps), qkv)
            heads = heads.view(rows, count, -1, self._size).transpose(1, 2)
            query, key, value = heads.split([self._heads, self._groups, self._groups], 1)
            keys, values = cache[number, :, :, :, : start + count]
            keys[:, :, start:], values[:, :, start:] = self._turn(key, start), value
            mixed = self._attend(self._turn(query, start), keys, values)
            x = x + times(mixed.reshape(rows * count, -1), out)
            gate, up = times(rms_norm(x, x.shape[-1:], after, self._eps), gate_up).chunk(2, -1)
            x = x + times(silu(gate) * up, down)
        last = x.view(rows, count, -1)[:, -1]
        return times(rms_norm(last, last.shape[-1:], self._norm, self._eps), self._head)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query [B, H, T, D] -> [B, T, H, D]. Queries of one key head go together for one token."""
        rows, _, count, _ = query.shape
        if count > 1:
            mixed = scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
            return mixed.transpose(1, 2)
        query = query.view(rows, self._groups, -1, self._size)
        return scaled_dot_product_attention(query, keys, values).view(rows, 1, self._heads, self._size)

    def _turn(self, heads: Tensor, start: int) -> Tensor:
        """Rotates heads [B, H, T, D] by their positions."""
        cos, sin = (table[start : start + heads.shape[2]] for table in (self._cos, self._sin))
        first, second = heads.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
    return packed


def times(x: Tensor, packed: Tensor) -> Tensor:
    """x [n, in] -> [n, out]."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed, None, "none", [], "")
    return product
