"""Many conversations at once on the CPU: a batched sampler with a KV cache that stays between the turns.

Dimensions: B conversations, T new tokens, S cached tokens, H query heads, K key heads, D head size.
The forward pass is Qwen3's, written out so that each row of a batch can stand at its own position; a test
compares it with `transformers`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3ForCausalLM


class Sampler:
    """B conversations that grow independently, each up to `capacity` tokens."""

    def __init__(self, model: Qwen3ForCausalLM, rows: int, capacity: int) -> None:
        config = model.config
        self._model = model.model
        self._head_dim: int = config.head_dim
        self._heads: int = config.num_attention_heads
        shape = (config.num_hidden_layers, 2, rows, config.num_key_value_heads, capacity, config.head_dim)
        self._cache = torch.zeros(shape)
        self.lengths_B = torch.zeros(rows, dtype=torch.long)
        inverse = 10_000.0 ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
        angles = torch.outer(torch.arange(capacity).float(), torch.cat((inverse, inverse)))
        self._cos, self._sin = angles.cos(), angles.sin()

    @torch.inference_mode()
    def extend(self, rows: list[int], chunks: list[list[int]]) -> Tensor:
        """Append one chunk of ids to each of `rows`;

        logits (len(rows), V) after the last id of each chunk.
        """
        sizes_B = torch.tensor([len(chunk) for chunk in chunks])
        width = int(sizes_B.max())
        ids_BT = torch.tensor([chunk + [0] * (width - len(chunk)) for chunk in chunks])
        rows_B = torch.tensor(rows)
        positions_BT = self.lengths_B[rows_B, None] + torch.arange(width)
        positions_BT.clamp_(max=self._cos.shape[0] - 1)
        hidden = self._forward(ids_BT, rows_B, positions_BT)
        self.lengths_B[rows_B] += sizes_B
        last = hidden[torch.arange(len(rows)), sizes_B - 1]
        return self._model.norm(last) @ self._model.embed_tokens.weight.T

    def _forward(self, ids_BT: Tensor, rows_B: Tensor, positions_BT: Tensor) -> Tensor:
        hidden = self._model.embed_tokens(ids_BT)
        cos, sin = self._cos[positions_BT, None], self._sin[positions_BT, None]
        span = int(positions_BT.max()) + 1
        # Padding writes keys beyond a row's length: they are masked here and overwritten by its next chunk.
        visible = torch.arange(span) <= positions_BT[..., None]
        for layer, cache in zip(self._model.layers, self._cache, strict=True):
            x = layer.input_layernorm(hidden)
            hidden = hidden + self._attend(layer.self_attn, x, cache, rows_B, positions_BT, cos, sin, visible)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return hidden

    def _attend(self, block, x, cache, rows_B, positions_BT, cos, sin, visible) -> Tensor:  # type: ignore[no-untyped-def]
        rows, width, _ = x.shape
        heads = (rows, width, -1, self._head_dim)
        query = _rotate(block.q_norm(block.q_proj(x).view(heads)), cos, sin)
        key = _rotate(block.k_norm(block.k_proj(x).view(heads)), cos, sin)
        value = block.v_proj(x).view(heads)
        cache[0][rows_B[:, None], :, positions_BT] = key
        cache[1][rows_B[:, None], :, positions_BT] = value
        span = visible.shape[-1]
        keys, values = cache[0][rows_B, :, :span], cache[1][rows_B, :, :span]
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, attn_mask=visible[:, None], enable_gqa=True
        )
        return block.o_proj(out.transpose(1, 2).reshape(rows, width, -1))

    def complete(
        self,
        rows: list[int],
        chunks: list[list[int]],
        *,
        stop_ids: set[int],
        max_tokens: int,
        generator: torch.Generator | None,
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Append chunks, then sample each row up to a stop id (included) or `max_tokens`.

        Temperature 1; with no generator, the likeliest token. Returns ids and their logprobs.
        """
        ids: dict[int, list[int]] = {row: [] for row in rows}
        logprobs: dict[int, list[float]] = {row: [] for row in rows}
        logits = self.extend(rows, chunks)
        going = list(rows)
        for _ in range(max_tokens):
            scores = torch.log_softmax(logits, dim=-1)
            chosen = (
                torch.multinomial(scores.exp(), 1, generator=generator)
                if generator
                else scores.argmax(-1, True)
            )
            picked = scores.gather(1, chosen)[:, 0].tolist()
            for row, token, logprob in zip(going, chosen[:, 0].tolist(), picked, strict=True):
                ids[row].append(token)
                logprobs[row].append(logprob)
            # A stop id, too, goes into the cache: the next chunk stands behind it.
            logits = self.extend(going, [[ids[row][-1]] for row in going])
            keep = [i for i, row in enumerate(going) if ids[row][-1] not in stop_ids]
            going, logits = [going[i] for i in keep], logits[keep]
            if not going:
                break
        return [ids[row] for row in rows], [logprobs[row] for row in rows]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin
