"""Loads a causal language model of the ecosystem and forwards packed tokens through it.

No model code is changed; the output layer of a model in 16 bits computes in float32. Rows to score are
forwarded in groups of similar length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from art.engine.builtin.free_memory import check_weights_fit
from art.engine.builtin.lora import AdapterLayers, FlatForward, Routing, adapter_turns, record_forward
from art.engine.builtin.output_layer import widen
from art.engine.builtin.quantized import place, quantizing
from art.engine.builtin.step_batch import (
    ATTENTION,
    Attends,
    PackedAttention,
    ShapeProbe,
    fresh_part,
    rows_attention,
)
from art.engine.limits import longest_fixed
from art.engine.protocol import Ranked
from art.errors import ConfigurationError
from art.process.environment import inherited_variables
from art.process.threads import cpu_threads
from art.wire.engine import BuiltinOptions
from art.wire.records import Bits

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
SCORE_ELEMENTS = 1 << 27
"""Logits of at most this many numbers are held at once when scoring."""


@dataclass(frozen=True, slots=True)
class CausalModel:
    """A model whose attention reads and writes cache rows, and what the engine must know of it."""

    name: str
    module: nn.Module
    routing: Routing
    adapters: AdapterLayers
    flat: FlatForward | None
    """The recorded forward pass, if the model can be recorded."""
    shapes: list[tuple[int, int, int]]
    """Per layer: key/value heads, key size, value size."""
    max_context: int
    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    whole_models: dict[int, CausalModel] = field(default_factory=dict)
    """Models whose weights were all trained, by their numbers among the adapters."""

    def forward(
        self, ids_T: Tensor, positions_T: Tensor, wanted: Tensor, adapter_T: np.ndarray, attention: Attends
    ) -> Tensor:
        """Logits [len(wanted), V] of the wanted packed tokens. Those of a whole model come without others."""
        whole = self.whole_models.get(int(adapter_T[0]))
        if whole is not None:
            return whole.forward(ids_T, positions_T, wanted, np.zeros_like(adapter_T), attention)
        self.routing.set(adapter_T, self.device)
        single = self.routing.single
        if self.flat is not None and single is not None:
            weights = self.adapters.flat_weights(single)
            if weights is not None:
                return self.flat.run(ids_T, positions_T, wanted, weights, attention)
        elif self.flat is not None:
            stack = self.adapters.stack([number for number, _ in self.routing.groups])
            if stack is not None:
                order = adapter_turns(adapter_T, stack, self.device)
                return self.flat.run_several(ids_T, positions_T, wanted, stack, order, attention)
        return _through_modules(self.module, ids_T, positions_T, wanted, attention)

    def score(self, adapter: int, rows: list[list[int]]) -> list[list[float]]:
        """Logprob of each id given those before it, temperature 1; rows of at least two ids."""
        return [list(one.logprobs) for one in self.rank(adapter, rows)]

    def rank(self, adapter: int, rows: list[list[int]], most: int = 0) -> list[Ranked]:
        """`score`, and the `most` probable ids in each place.

        The logits of a group are computed in slices when they would not fit in memory at once.
        """
        most = min(most, self.vocab_size)
        counts = np.array([len(row) for row in rows])
        ends = counts.cumsum()
        attention = PackedAttention([fresh_part(counts, self.device)])
        ids_T = torch.tensor([token for row in rows for token in row], device=self.device)
        positions_T = torch.from_numpy(np.concatenate([np.arange(n) for n in counts])).to(self.device)
        scored = np.delete(np.arange(ends[-1]), ends - 1)
        adapter_T = np.full(ends[-1], adapter)
        slices: list[Tensor] = []
        best: list[list[tuple[int, float]]] = []
        step = max(1, SCORE_ELEMENTS // self.vocab_size)
        for first in range(0, len(scored), step):
            wanted = torch.from_numpy(scored[first : first + step]).to(self.device)
            logits = self.forward(ids_T, positions_T, wanted, adapter_T, attention)
            logprobs = torch.log_softmax(logits.float(), -1)
            slices.append(logprobs.gather(1, ids_T[wanted + 1][:, None])[:, 0])
            if most:
                top = logprobs.topk(most, dim=-1)
                best += map(_pairs, top.indices.tolist(), top.values.tolist())
        flat = torch.cat(slices).tolist()
        bounds = np.concatenate([[0], (counts - 1).cumsum()]).tolist()
        return [Ranked(logprobs=flat[a:b], tops=best[a:b]) for a, b in pairwise(bounds)]


def _pairs(ids: list[int], logprobs: list[float]) -> list[tuple[int, float]]:
    return list(zip(ids, logprobs, strict=True))


def load_model(name: str, options: BuiltinOptions, bits: Bits = 16) -> CausalModel:
    """Raises: ConfigurationError when there is no such model, or it is not a causal model with plain
    attention."""
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register(ATTENTION, rows_attention)
    device = _device(options.device)
    dtype = _dtype(options.dtype, device)
    local = Path(name).is_dir()
    check_weights_fit(name, device, dtype, bits)
    try:
        module = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=dtype,
            attn_implementation=ATTENTION,
            local_files_only=local,
            trust_remote_code=False,
            **quantizing(bits, device, dtype),
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot load the base model {name!r}: {error}") from error
    module = place(module, device).eval().requires_grad_(False)
    widen(module)
    threads = cpu_threads(options.threads, module.num_parameters(), inherited_variables())
    if threads is not None:
        torch.set_num_threads(threads)
    config = module.config.get_text_config()
    other = sorted(set(getattr(config, "layer_types", None) or ()) - ATTENTION_LAYERS)
    if other:
        raise ConfigurationError(
            f"{name!r} has layers of type {', '.join(other)}; the builtin engine knows attention"
        )
    routing = Routing()
    shapes = _probe(name, module, config, device)
    flat = record_forward(module, device, config.vocab_size, partial(_through_modules, module))
    model = CausalModel(
        name=name,
        module=module,
        routing=routing,
        adapters=AdapterLayers(module, routing, options.merge_mb << 20, flat),
        flat=flat,
        shapes=shapes,
        max_context=_max_context(config, options),
        vocab_size=config.vocab_size,
        device=device,
        dtype=dtype,
    )
    _check_against_own_attention(model)
    return model


def _through_modules(
    module: nn.Module, ids_T: Tensor, positions_T: Tensor, wanted: Tensor, attention: Attends
) -> Tensor:
    out = module(
        input_ids=ids_T[None],
        position_ids=positions_T[None],
        use_cache=False,
        logits_to_keep=wanted,
        art_batch=attention,
    )
    return out.logits[0]


def _max_context(config: Any, options: BuiltinOptions) -> int:
    """No more than the model takes, and than its positions keep their meaning for: cached keys stay as they
    are.
    """
    limits = (config.max_position_embeddings, options.max_context, longest_fixed(config))
    return int(min(limit for limit in limits if limit is not None))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"unknown device {name!r}; known: auto, cpu, cuda, cuda:0, ...") from error


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.float32 if name == "float32" else torch.bfloat16


@torch.inference_mode()
def _probe(name: str, module: nn.Module, config: Any, device: torch.device) -> list[tuple[int, int, int]]:
    """Forward one token and see which layers attend: each exactly once, or the cache rows would be wrong."""
    probe = ShapeProbe()
    layers = int(config.num_hidden_layers)
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    try:
        module(input_ids=token, position_ids=token, use_cache=False, logits_to_keep=token[0], art_batch=probe)
    except (TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{name!r} ({type(module).__name__}) does not take what the builtin engine hands to a model: "
            f"{error}"
        ) from error
    if sorted(probe.shapes) != list(range(layers)) or probe.calls != layers:
        raise ConfigurationError(
            f"{name!r} ({type(module).__name__}) attends in {len(probe.shapes)} of its {layers} layers, "
            f"{probe.calls} times; the builtin engine runs models where each layer attends once"
        )
    kinds = getattr(config, "layer_types", None) or ()
    silent = [n for n, kind in enumerate(kinds) if kind == "sliding_attention" and not probe.windows[n]]
    if silent:
        raise ConfigurationError(
            f"{name!r} ({type(module).__name__}) has windows in its layers {silent} that they do not tell "
            "their attention function; the builtin engine cannot run it"
        )
    return [probe.shapes[layer] for layer in range(layers)]


@torch.inference_mode()
def _check_against_own_attention(model: CausalModel) -> None:
    """The model's own attention and ours must agree on a few tokens, or the architecture has more than we
    know."""
    ids = (torch.arange(12, device=model.device) * 7 + 3) % model.vocab_size
    positions = torch.arange(12, device=model.device)
    attention = PackedAttention([fresh_part(np.array([12]), model.device)])
    ours = model.forward(ids, positions, positions, np.zeros(12, np.int64), attention)
    module = model.module
    module.set_attn_implementation("eager")
    theirs = module(input_ids=ids[None], use_cache=False).logits[0]
    module.set_attn_implementation(ATTENTION)
    difference = (ours.float().log_softmax(-1) - theirs.float().log_softmax(-1)).abs().max().item()
    limit = 1e-3 if model.dtype == torch.float32 else 0.5
    if not difference <= limit:
        raise ConfigurationError(
            f"{model.name!r} ({type(module).__name__}): our logprobs differ from the model's "
            f"own by {difference:.2g} (limit {limit}): its attention is of an unknown kind"
        )


SCORE_TOKENS = 8192
"""Padded tokens of one pass."""


def rank_rows(model: CausalModel, adapter: int, rows: list[list[int]], most: int = 0) -> list[Ranked]:
    """Logprob of each id given those before it, temperature 1, and the `most` probable ids in its place; rows
    of at least two ids, in their order.
    """
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    ranked: dict[int, Ranked] = {}
    while order:
        count = max(1, SCORE_TOKENS // len(rows[order[-1]]))
        order, group = order[:-count], order[-count:]
        ranked.update(zip(group, model.rank(adapter, [rows[i] for i in group], most), strict=True))
    return [ranked[index] for index in range(len(rows))]
