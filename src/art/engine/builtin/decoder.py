"""The forward pass of the Llama and Qwen family, written out: what `transformers` computes, in few products.

Their layers differ in details only (biases, norms of the heads, windows, kinds of rotation), all read from
the loaded model. q, k and v are one product here, and so are gate and up; adapters stay apart and are grouped
(`grouped_lora`), or are merged where the model is small. On a CPU the weights of a large model are laid out
once as oneDNN multiplies them, instead of at each product. These are the only copy: the model's own modules
are left as a skeleton without weights.

Norms and rotations are computed and rounded as `transformers` does.

T packed tokens, C hidden size, H query heads, G key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, silu

from art.engine.builtin.grouped_lora import ALIGNED, GroupedLora, Joint, Pair, Turns
from art.engine.builtin.peft_folder import PeftAdapter
from art.engine.builtin.quantized import is_quantized
from art.engine.builtin.step_batch import Attends, LayerCall
from art.process.threads import SMALL_MODEL_PARAMETERS

FAMILY = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
JOINTS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""Layers of one input, by their names within a layer of the model."""
TABLE_BYTES = 16 << 20
"""The rotations of all positions are kept where they fit in so much."""
PACKED_ROWS = 32
"""Rows that weights are laid out for; other numbers are within some percent of their own best."""


def is_of_family(module: Any) -> bool:
    """Returns whether `Decoder` computes the model."""
    if type(module).__name__ not in FAMILY or module.config.hidden_act != "silu":
        return False
    layers = [layer for layer in module.model.modules() if isinstance(layer, nn.Linear)]
    if any(is_quantized(layer) for layer in layers):
        return False  # nothing is computed with their weights but by the layers
    sizes = [size * layer.weight.itemsize for layer in layers for size in layer.weight.shape[:2]]
    return not any(size % ALIGNED for size in sizes)


def packs(weight: Tensor, parameters: int) -> bool:
    """Returns whether oneDNN's layout pays. Below, the products are so short that its calls cost more."""
    fits = weight.device.type == "cpu" and weight.dtype == torch.float32
    if not fits or parameters < SMALL_MODEL_PARAMETERS or not torch.backends.mkldnn.is_available():
        return False
    # What TorchInductor writes into the models that it compiles; not every build of torch has it.
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )


class Product:
    """Linear layers of one input as one product."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, packed: bool) -> None:
        """weight: [out, in]."""
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS) if packed else weight
        self._bias = bias
        self._packed = packed

    @classmethod
    def of_layers(cls, layers: Sequence[nn.Linear], *, packed: bool) -> Product:
        """The product of these layers; their weights are shared where that can be."""
        weights = [layer.weight.detach() for layer in layers]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        bias = None
        if any(layer.bias is not None for layer in layers):
            zeros = [weight.new_zeros(layer.out_features) for layer in layers]
            pairs = zip(layers, zeros, strict=True)
            bias = torch.cat([zero if one.bias is None else one.bias for one, zero in pairs])
        return cls(weight, bias, packed=packed)

    def with_adapter(self, pair: Pair | None) -> Product:
        """The product of a weight that has an adapter's part in it."""
        if pair is None:
            return self
        a, b = pair
        return Product(torch.addmm(self._weight, b.t(), a.t()), self._bias, packed=False)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return linear(x, self._weight, self._bias)

    def onto(self, y: Tensor, x: Tensor) -> Tensor:
        """The product, with y [T, out] added."""
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, y, self._weight, self._bias, "add")
        if self._bias is None:
            return torch.addmm(y, x, self._weight.t())
        return y + linear(x, self._weight, self._bias)


class RootMeanSquare:
    """The norm over the last dimension, with a weight for each of its elements or of several heads'."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight.detach().clone()
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return rms_norm(x, x.shape[-1:], None, self._eps).mul_(self._weight)
        return rms_norm(x.float(), x.shape[-1:], None, self._eps).to(x.dtype).mul_(self._weight)


@dataclass(frozen=True, slots=True)
class Layer:
    """One of the model's layers, without its products."""

    attention_norm: RootMeanSquare
    head_norm: RootMeanSquare | None
    """The norm of queries and keys; its weight is [H + G, D]."""
    mlp_norm: RootMeanSquare
    call: LayerCall
    """What attention is told."""


@dataclass(frozen=True, slots=True)
class Step:
    """The inputs that all layers of one pass share."""

    products: Sequence[Product]
    """The products by joint, four a layer."""
    turns: Turns | None
    cos: Tensor
    """[T, 1, D]."""
    sin: Tensor
    """[T, 1, D], its first half negative: heads are rolled by half their size, not negated."""
    attention: Attends

    def product(self, joint: int, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """x [T, in] through a joint and its adapters."""
        one = self.products[joint]
        y = one(x) if onto is None else one.onto(onto, x)
        return y if self.turns is None else self.turns.add_to(y, x, joint)


class Decoder:
    """The pass of one model, with its adapters."""

    def __init__(self, module: Any, calls: Sequence[LayerCall], merge_bytes: int) -> None:
        """Takes the weights out of `module`; `calls` are what its layers hand to their attention."""
        model, head = module.model, module.lm_head
        # Copied, as the norms are: what is left of a file that is mapped into memory keeps all of it there.
        self._embedding = model.embed_tokens.weight.detach().clone()
        packed = packs(self._embedding, module.num_parameters())
        attention = model.layers[0].self_attn
        self._size: int = attention.head_dim
        self._heads: int = attention.q_proj.out_features // self._size
        self._turned: int = self._heads + attention.k_proj.out_features // self._size
        """H + G: the heads that are rotated."""
        self._rotary = model.rotary_emb
        half = self._embedding.new_ones(self._size // 2)
        self._sign = torch.cat([-half, half])
        self._table = self._rotations(module.config.max_position_embeddings)
        self._norm = _norm_of(model.norm)
        self._layers: list[Layer] = []
        self._products: list[Product] = []
        joints: list[Joint] = []
        for number, (layer, call) in enumerate(zip(model.layers, calls, strict=True)):
            for names in JOINTS:
                linears = [layer.get_submodule(name) for name in names]
                full = tuple(f"model.layers.{number}.{name}" for name in names)
                joints.append(Joint(full, tuple(one.out_features for one in linears), linears[0].in_features))
                self._products.append(Product.of_layers(linears, packed=packed))
            self._layers.append(self._layer(layer, call))
            layer.to("meta")  # one after the other: the weights are never there twice
        size = sum(joint.size * sum(joint.outs) for joint in joints) * self._embedding.itemsize
        self._merges = not packed and self._embedding.dtype == torch.float32 and size <= merge_bytes
        self._merged: dict[int, list[Product]] = {}
        self._lora = GroupedLora(module, joints, self._embedding.dtype, self._embedding.device)
        self._head = head
        if type(head) is nn.Linear:
            self._head = Product.of_layers([head], packed=packed)
            head.to("meta")
        model.embed_tokens.to("meta")
        model.norm.to("meta")

    def add(self, number: int, adapter: PeftAdapter) -> None:
        """Raises: CheckpointError when the adapter does not fit the model; then nothing was changed."""
        pairs = self._lora.add(number, adapter)
        if self._merges:
            products = zip(self._products, pairs, strict=True)
            self._merged[number] = [product.with_adapter(pair) for product, pair in products]

    def remove(self, number: int) -> None:
        """The adapter goes: nothing of it is kept."""
        self._lora.remove(number)
        self._merged.pop(number, None)

    def run(
        self, ids_T: Tensor, positions_T: Tensor, wanted: Tensor, adapter_T: np.ndarray, attention: Attends
    ) -> Tensor:
        """Logits [len(wanted), V] of the wanted packed tokens."""
        first = int(adapter_T[0])
        products, turns = self._merged.get(first), None
        if products is None or (adapter_T != first).any():
            products, turns = self._products, self._lora.turns(adapter_T)
        if turns is not None and turns.order is not None and turns.places is not None:
            ids_T, positions_T = ids_T[turns.order], positions_T[turns.order]
            wanted = turns.places[wanted]
        x_TC = self._through_layers(ids_T, positions_T, products, turns, attention)
        return self._head(self._norm(x_TC.index_select(0, wanted)))

    def _through_layers(
        self,
        ids_T: Tensor,
        positions_T: Tensor,
        products: Sequence[Product],
        turns: Turns | None,
        attention: Attends,
    ) -> Tensor:
        """Hidden states [T, C] of the tokens, in the order of their turns."""
        x_TC = embedding(ids_T, self._embedding)
        if self._table is not None:
            cos, sin = self._table.index_select(0, positions_T).unbind(1)
        else:
            cos, sin = self._rotation(positions_T)
        step = Step(products, turns, cos, sin, attention)
        for number, layer in enumerate(self._layers):
            x_TC = self._attend(x_TC, number, layer, step)
            gate, up = step.product(4 * number + 2, layer.mlp_norm(x_TC)).chunk(2, -1)
            x_TC = step.product(4 * number + 3, silu(gate).mul_(up), onto=x_TC)
        return x_TC

    def _attend(self, x_TC: Tensor, number: int, layer: Layer, step: Step) -> Tensor:
        joined = step.product(4 * number, layer.attention_norm(x_TC))
        heads = joined.view(len(joined), -1, self._size)
        turned, value = heads[:, : self._turned], heads[:, self._turned :]
        if layer.head_norm is not None:
            turned = layer.head_norm(turned)
        turned = (turned * step.cos).add_(turned.roll(self._size // 2, -1).mul_(step.sin))
        order = None
        if step.turns is not None and step.turns.places is not None:
            order, places = step.turns.order, step.turns.places
            turned, value = turned.index_select(0, places), value.index_select(0, places)
        query, key = turned[:, : self._heads], turned[:, self._heads :]
        out = step.attention.attend(
            number, query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), layer.call
        )
        if order is not None:
            out = out.index_select(0, order)
        return step.product(4 * number + 1, out.reshape(len(joined), -1), onto=x_TC)

    def _layer(self, layer: Any, call: LayerCall) -> Layer:
        head_norm = None
        if hasattr(layer.self_attn, "q_norm"):
            query, key = layer.self_attn.q_norm, layer.self_attn.k_norm
            groups = self._turned - self._heads
            weights = [query.weight.expand(self._heads, -1), key.weight.expand(groups, -1)]
            head_norm = RootMeanSquare(torch.cat(weights), query.variance_epsilon)
        before, after = layer.input_layernorm, layer.post_attention_layernorm
        return Layer(_norm_of(before), head_norm, _norm_of(after), call)

    def _rotation(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [T, 1, D] of these positions, as the model's own module computes them."""
        cos, sin = self._rotary(self._embedding[:1], positions_T[None])
        return cos[0, :, None], (sin[0] * self._sign)[:, None]

    @property
    def rotates_alike(self) -> bool:
        """Returns whether a position is rotated alike in each pass, whatever the longest row."""
        return "dynamic" not in self._rotary.rope_type and "longrope" not in self._rotary.rope_type

    def _rotations(self, positions: int) -> Tensor | None:
        """Returns those of all positions, [positions, 2, 1, D]; None where they depend on the longest row, or
        are many.
        """
        if not self.rotates_alike or 2 * positions * self._size * self._embedding.itemsize > TABLE_BYTES:
            return None
        return torch.stack(self._rotation(torch.arange(positions, device=self._embedding.device)), 1)


def _norm_of(module: Any) -> RootMeanSquare:
    return RootMeanSquare(module.weight, module.variance_epsilon)
