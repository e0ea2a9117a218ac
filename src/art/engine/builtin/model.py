"""Loads a causal language model of the ecosystem and forwards packed tokens through it.

No model code is changed; the output layer of a model in 16 bits computes in float32. Rows to score are
forwarded in groups of similar length.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from art.engine.builtin.decoder import Decoder, is_of_family
from art.engine.builtin.free_memory import check_weights_fit
from art.engine.builtin.module_pass import ModulePass
from art.engine.builtin.other_ids import OtherIds, pairs_of
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
from art.engine.protocol import Ranked, Rows
from art.errors import ConfigurationError
from art.extensions import PASS, extension_points, load_extension
from art.process.environment import inherited_variables
from art.process.imports import import_lock
from art.process.threads import cpu_threads
from art.wire.engine import Alternatives, BuiltinOptions
from art.wire.records import Bits

logger = logging.getLogger(__name__)

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
SCORE_ELEMENTS = 1 << 27
"""Logits of at most this many numbers are held at once when scoring."""


@dataclass(frozen=True, slots=True)
class CausalModel:
    """A model whose attention reads and writes cache rows, and what the engine must know of it."""

    name: str
    passes: Decoder | ModulePass
    """What computes it, with its adapters."""
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
        full_model = self.whole_models.get(int(adapter_T[0]))
        if full_model is not None:
            return full_model.forward(ids_T, positions_T, wanted, np.zeros_like(adapter_T), attention)
        return self.passes.run(ids_T, positions_T, wanted, adapter_T, attention)

    def score(self, adapter: int, rows: list[list[int]]) -> list[list[float]]:
        """Logprob of each id given those before it, temperature 1; rows of at least two ids."""
        return [list(one.logprobs) for one in self.rank(adapter, rows)]

    def rank(
        self, adapter: int, rows: list[list[int]], most: int = 0, alternatives: Alternatives | None = None
    ) -> list[Ranked]:
        """`score`, and the `most` probable ids in each place; of a single row, its alternatives.

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
        others = OtherIds(alternatives or Alternatives(), self.device)
        step = max(1, SCORE_ELEMENTS // self.vocab_size)
        for first in range(0, len(scored), step):
            wanted = torch.from_numpy(scored[first : first + step]).to(self.device)
            logits = self.forward(ids_T, positions_T, wanted, adapter_T, attention)
            logprobs = torch.log_softmax(logits.float(), -1)
            slices.append(logprobs.gather(1, ids_T[wanted + 1][:, None])[:, 0])
            if most:
                top = logprobs.topk(most, dim=-1)
                best += map(pairs_of, top.indices.tolist(), top.values.tolist())
            if alternatives is not None:
                others.add(first, logprobs)
        flat = torch.cat(slices).tolist()
        bounds = np.concatenate([[0], (counts - 1).cumsum()]).tolist()
        named, drawn = others.named_M.tolist(), others.drawn
        return [
            Ranked(logprobs=flat[a:b], tops=best[a:b], named=named, drawn=drawn) for a, b in pairwise(bounds)
        ]


def load_model(name: str, options: BuiltinOptions, bits: Bits = 16) -> CausalModel:
    """Raises: ConfigurationError when there is no such model, or it is not a causal model with plain
    attention."""
    device = _device(options.device)
    dtype = _dtype(options.dtype, device)
    for own_code in (False, True):
        module = _read_model(name, device, dtype, bits)
        config = module.config.get_text_config()
        threads = cpu_threads(options.threads, module.num_parameters(), inherited_variables())
        if threads is not None:
            torch.set_num_threads(threads)
        probe = _probe(name, module, config, device)
        theirs = _own_logprobs(module, config.vocab_size, device)
        written_out = not own_code and is_of_family(module)
        model = CausalModel(
            name=name,
            passes=_decoder_kind(device)(module, list(probe.calls.values()), options.merge_mb << 20)
            if written_out
            else ModulePass(module, device),
            shapes=list(probe.shapes.values()),
            max_context=_max_context(config, options),
            vocab_size=config.vocab_size,
            device=device,
            dtype=dtype,
        )
        difference = _difference(model, theirs)
        if difference <= (1e-3 if dtype == torch.float32 else 0.5):
            return model
        if not written_out:
            raise ConfigurationError(
                f"{name!r} ({type(module).__name__}): our logprobs differ from the model's own by "
                f"{difference:.2g}: its attention is of an unknown kind"
            )
        logger.warning("%s runs through its modules: written out, it differs by %g", name, difference)
    raise AssertionError("unreachable")


def _decoder_kind(device: torch.device) -> type[Decoder]:
    given = device.type in extension_points(PASS)
    return load_extension(PASS, device.type) if given else Decoder


def _read_model(name: str, device: torch.device, dtype: torch.dtype, bits: Bits) -> Any:
    """The module of transformers, on its device."""
    with import_lock:
        from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register(ATTENTION, rows_attention)
    check_weights_fit(name, device, dtype, bits)
    try:
        module = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=dtype,
            attn_implementation=ATTENTION,
            local_files_only=Path(name).is_dir(),
            trust_remote_code=False,
            **quantizing(bits, device, dtype),
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot load the base model {name!r}: {error}") from error
    module = place(module, device).eval().requires_grad_(False)
    widen(module)
    other = sorted(
        set(getattr(module.config.get_text_config(), "layer_types", None) or ()) - ATTENTION_LAYERS
    )
    if other:
        raise ConfigurationError(
            f"{name!r} has layers of type {', '.join(other)}; the builtin engine knows attention"
        )
    return module


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
def _probe(name: str, module: nn.Module, config: Any, device: torch.device) -> ShapeProbe:
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
    if list(probe.shapes) != list(range(layers)) or probe.count != layers:
        raise ConfigurationError(
            f"{name!r} ({type(module).__name__}) attends in {len(probe.shapes)} of its {layers} layers, "
            f"{probe.count} times; the builtin engine runs models where each layer attends once, in order"
        )
    kinds = getattr(config, "layer_types", None) or ()
    windows = [call.window for call in probe.calls.values()]
    silent = [n for n, kind in enumerate(kinds) if kind == "sliding_attention" and not windows[n]]
    if silent:
        raise ConfigurationError(
            f"{name!r} ({type(module).__name__}) has windows in its layers {silent} that they do not tell "
            "their attention function; the builtin engine cannot run it"
        )
    return probe


CHECKED_TOKENS = 12


@torch.inference_mode()
def _own_logprobs(module: Any, vocabulary: int, device: torch.device) -> Tensor:
    """Returns the logprobs of some tokens, with the model's own attention."""
    module.set_attn_implementation("eager")
    logits = module(input_ids=_checked_ids(vocabulary, device)[None], use_cache=False).logits[0]
    module.set_attn_implementation(ATTENTION)
    return logits.float().log_softmax(-1)


@torch.inference_mode()
def _difference(model: CausalModel, theirs: Tensor) -> float:
    """The model's own logprobs and ours must agree, or the architecture has more than we know."""
    ids = _checked_ids(model.vocab_size, model.device)
    positions = torch.arange(len(ids), device=model.device)
    attention = PackedAttention([fresh_part(np.array([len(ids)]), model.device)])
    ours = model.forward(ids, positions, positions, np.zeros(len(ids), np.int64), attention)
    difference = float((ours.float().log_softmax(-1) - theirs).abs().max())
    return float("inf") if difference != difference else difference


def _checked_ids(vocabulary: int, device: torch.device) -> Tensor:
    return (torch.arange(CHECKED_TOKENS, device=device) * 7 + 3) % vocabulary


SCORE_TOKENS = 8192
"""Padded tokens of one pass."""


def rank_rows(
    model: CausalModel, adapter: int, rows: Rows, most: int = 0, alternatives: Alternatives | None = None
) -> list[Ranked]:
    """Logprob of each id given those before it, temperature 1, and the `most` probable ids in its place; rows
    of at least two ids, in their order.
    """
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    ranked: dict[int, Ranked] = {}
    while order:
        count = max(1, SCORE_TOKENS // len(rows[order[-1]]))
        order, group = order[:-count], order[-count:]
        found = model.rank(adapter, [list(rows[i]) for i in group], most, alternatives)
        ranked.update(zip(group, found, strict=True))
    return [ranked[index] for index in range(len(rows))]
