"""The memory that training a model needs, computed from its configuration alone: no weights, no GPU.

The model is built on torch's device `meta`, where tensors have shapes and no values. What a token of its
forward pass keeps is counted there as `memory_plan` counts it of a real model, and the plan of a step is that
module's. Nothing here was measured on a GPU.

    sampling:  trainer at rest + engine (weights, adapters, keys and values)
    training:  trainer at its peak + what the engine holds while it sleeps

The builtin engine keeps its weights while it sleeps, vLLM puts them into main memory.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from art.engine.base_models import model_source, resolve_base
from art.engine.builtin.cache import bytes_per_token
from art.engine.builtin.free_memory import GIB
from art.engine.nano_models import PREFIX
from art.engine.registry import check_bits
from art.errors import ConfigurationError
from art.process.imports import import_lock
from art.training.causal_lm import decoder_layers, decoder_of
from art.training.lora import LoraAdapters, linear_layers
from art.training.memory_plan import (
    MOMENTS,
    PROBE,
    SHARE,
    SMALLEST,
    STATE,
    TWICE,
    Footprint,
    MemoryPlan,
    kept_storages,
    make_footprint,
    plan_memory,
)
from art.wire.records import split_bits
from art.wire.training import LoraSpec

LOG = logging.getLogger(__name__)

CARDS = (24, 40, 80)
"""GiB of usual GPUs."""
CONVERSATIONS = 8
"""Whose keys and values an engine holds at least: a group of rollouts, each at its full context."""
PROCESS = GIB // 2
"""The assumed bytes of a process on a GPU or a CPU beside its tensors: the driver's context, libraries."""
VLLM_LORAS = 8
"""Adapters that vLLM keeps room for on the GPU, its option `max_loras`."""
WEIGHT = {16: 2.0, 8: 1.0, 4: 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Bytes of a weight of a linear layer by its bits; in 4 with the scales of its blocks, quantized too."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The figures of a `config.json`."""

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool

    def config(self) -> Any:
        with import_lock:
            from transformers import AutoConfig

        figures = {name: getattr(self, name) for name in self.__slots__ if name != "model_type"}
        return AutoConfig.for_model(self.model_type, **figures)


ARCHITECTURES = {
    "Qwen/Qwen3-0.6B": Architecture("qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 40960, True),
    "Qwen/Qwen3-1.7B": Architecture("qwen3", 2048, 28, 16, 8, 128, 6144, 151936, 40960, True),
    "Qwen/Qwen3-4B": Architecture("qwen3", 2560, 36, 32, 8, 128, 9728, 151936, 40960, True),
    "Qwen/Qwen3-8B": Architecture("qwen3", 4096, 36, 32, 8, 128, 12288, 151936, 40960, False),
    "Qwen/Qwen3-14B": Architecture("qwen3", 5120, 40, 40, 8, 128, 17408, 151936, 40960, False),
    "Qwen/Qwen3-32B": Architecture("qwen3", 5120, 64, 64, 8, 128, 25600, 151936, 40960, False),
    "Qwen/Qwen2.5-0.5B-Instruct": Architecture("qwen2", 896, 24, 14, 2, 64, 4864, 151936, 32768, True),
    "Qwen/Qwen2.5-1.5B-Instruct": Architecture("qwen2", 1536, 28, 12, 2, 128, 8960, 151936, 32768, True),
    "Qwen/Qwen2.5-3B-Instruct": Architecture("qwen2", 2048, 36, 16, 2, 128, 11008, 151936, 32768, True),
    "Qwen/Qwen2.5-7B-Instruct": Architecture("qwen2", 3584, 28, 28, 4, 128, 18944, 152064, 32768, False),
    "Qwen/Qwen2.5-14B-Instruct": Architecture("qwen2", 5120, 48, 40, 8, 128, 13824, 152064, 32768, False),
    "Qwen/Qwen2.5-32B-Instruct": Architecture("qwen2", 5120, 64, 40, 8, 128, 27648, 152064, 32768, False),
    "Qwen/Qwen2.5-72B-Instruct": Architecture("qwen2", 8192, 80, 64, 8, 128, 29568, 152064, 32768, False),
    "meta-llama/Llama-3.2-1B-Instruct": Architecture(
        "llama", 2048, 16, 32, 8, 64, 8192, 128256, 131072, True
    ),
    "meta-llama/Llama-3.2-3B-Instruct": Architecture(
        "llama", 3072, 28, 24, 8, 128, 8192, 128256, 131072, True
    ),
    "meta-llama/Llama-3.1-8B-Instruct": Architecture(
        "llama", 4096, 32, 32, 8, 128, 14336, 128256, 131072, False
    ),
    "meta-llama/Llama-3.3-70B-Instruct": Architecture(
        "llama", 8192, 80, 64, 8, 128, 28672, 128256, 131072, False
    ),
}
"""The common models whose plan needs no network. A size such as `8B` means the first of that size."""
_SIZE = re.compile(r"\d+(\.\d+)?b", re.IGNORECASE)


def find_config(model: str) -> tuple[str, Any]:
    """Returns the name and the configuration of an embedded model, a folder, a GGUF file, a known model, a
    size such as `8B`, or a model of the hub (only its config.json is downloaded).

    Raises ConfigurationError when there is none.
    """
    with import_lock:
        from transformers import AutoConfig

    base = resolve_base(model)
    if base.made_by is not None:
        return model, model_source(base).read_config(base.source, LOG.info)
    if model.startswith(PREFIX):
        return model, AutoConfig.from_pretrained(base.source, local_files_only=True)
    if (known := _known(model)) is not None:
        return known, ARCHITECTURES[known].config()
    if _SIZE.fullmatch(model):
        sizes = dict.fromkeys(_size(name) for name in ARCHITECTURES)
        raise ConfigurationError(f"no known model has the size {model!r}; known sizes: {', '.join(sizes)}")
    try:
        folder = Path(model).expanduser().is_dir()
        config = AutoConfig.from_pretrained(model, trust_remote_code=False, local_files_only=folder)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no configuration of {model!r}: it is no folder with a config.json, and the hub gave none "
            f"({_first_line(error)}). Known without the hub: {', '.join(ARCHITECTURES)}; and sizes, as 8B."
        ) from error
    return model, config


def _known(model: str) -> str | None:
    for name in ARCHITECTURES:
        short = name.partition("/")[2]
        if model.lower() in (name.lower(), short.lower(), short.removesuffix("-Instruct").lower()):
            return name
    return next((name for name in ARCHITECTURES if _size(name) == model.upper()), None)


def _size(name: str) -> str:
    return name.removesuffix("-Instruct").rpartition("-")[2]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """The sizes of a model and a LoRA on it: numbers of parameters, bytes a token."""

    quantizable: int
    """Parameters of the decoder's linear layers."""
    others: int
    """Embeddings, output layer, norms."""
    adapter: int
    layers: int
    kept_bytes: float
    """Bytes that a token of a forward pass keeps for the backward pass."""
    cached: int
    """Bytes of a token's keys and values."""

    @property
    def parameters(self) -> int:
        return self.quantizable + self.others

    def weights(self, bits: int, element: int) -> float:
        """Bytes; `element`: of a number that is not quantized."""
        each = element if bits == 16 else WEIGHT[bits]
        return self.quantizable * each + self.others * element


@dataclass(slots=True)
class _MetaModel:
    """The part of a policy that adapters need."""

    causal_lm: Any
    name: str
    drops_out: bool = False


def measure_shape(name: str, config: Any, lora: LoraSpec, *, cuda: bool) -> ModelShape:
    """Builds the model with the LoRA on the device `meta` and counts. `cuda`: in bfloat16, else float32.

    Raises ConfigurationError for a configuration that is no causal language model's, or unknown targets.
    """
    with import_lock:
        from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register(_PLANNED, _attend)
    dtype = torch.bfloat16 if cuda else torch.float32
    with torch.device("meta"):
        try:
            causal_lm = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=_PLANNED, trust_remote_code=False
            )
        except ValueError as error:
            raise ConfigurationError(f"{name!r} is no causal language model: {_first_line(error)}") from error
        causal_lm.requires_grad_(False).eval()
        own = sum(parameter.numel() for parameter in causal_lm.parameters())
        targets = linear_layers(causal_lm)
        linear = sum(
            module.weight.numel()
            for key, module in decoder_of(causal_lm).named_modules()
            if isinstance(module, torch.nn.Linear) and key.rpartition(".")[2] in targets
        )
        layers = len(decoder_layers(causal_lm))
        adapters = LoraAdapters(_MetaModel(causal_lm, name))
        adapters.attach("plan", lora, seed=0)
        adapter = sum(parameter.numel() for parameter in adapters.parameters("plan").values())
        kept_bytes = bytes_kept(causal_lm, PROBE) / PROBE
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelShape(
        quantizable=linear,
        others=own - linear,
        adapter=adapter,
        layers=layers,
        kept_bytes=kept_bytes,
        cached=bytes_per_token([(heads, size, size)] * text.num_hidden_layers, dtype),
    )


_PLANNED = "art_planned"


class _Attention(torch.autograd.Function):
    """Keeps what the kernels of the trainer keep: queries, keys, values, output and logsumexp."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return out


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    return _Attention.apply(query, key, value).transpose(1, 2), None


def bytes_kept(causal_lm: Any, tokens: int) -> int:
    ids, positions = torch.zeros(1, tokens, dtype=torch.long), torch.arange(tokens)[None]
    decoder = decoder_of(causal_lm)
    storages, _ = kept_storages(
        lambda: decoder(input_ids=ids, position_ids=positions, use_cache=False),
        [*causal_lm.parameters(), *causal_lm.buffers()],
    )
    return sum(storages.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class CardPlan:
    """One card: whether a run fits, and the plan of its steps."""

    gib: int
    fits: bool
    step: MemoryPlan

    def __str__(self) -> str:
        if not self.fits:
            return "no"
        return f"yes, micro-batch {self.step.token_budget:,} tokens" + (
            ", activation checkpointing on" if self.step.way.checkpointing else ""
        )


@dataclass(frozen=True, kw_only=True)
class HardwarePlan:
    """The memory of one trainer and one engine of a model on the same device. All figures are bytes."""

    model: str
    shape: ModelShape
    config: Any
    rank: int
    context: int
    engine: str
    bits: int
    cuda: bool

    @property
    def title(self) -> str:
        size = f"{self.shape.parameters / 1e9:.2f} B" if self.shape.parameters >= 1e8 else ""
        size = size or f"{self.shape.parameters / 1e6:.2f} M"
        return (
            f"{self.model}: {size} parameters, {self.bits} bits, LoRA of rank {self.rank}, "
            f"context {self.context:,}, engine {self.engine}"
        )

    @property
    def element(self) -> int:
        return 2 if self.cuda else 4

    @property
    def weights(self) -> float:
        """The base model's weights. Trainer and engine have one copy each."""
        return self.shape.weights(self.bits, self.element)

    @property
    def trainer_at_rest(self) -> float:
        """Weights, and the adapter with its moments in float32."""
        return PROCESS + self.weights + (4 + MOMENTS) * self.shape.adapter

    @cached_property
    def footprint(self) -> Footprint:
        return make_footprint(
            self.config,
            layers=self.shape.layers,
            token=self.shape.kept_bytes,
            vocabulary=self.config.get_text_config().vocab_size,
            element=self.element,
            trained=self.shape.adapter,
        )

    @property
    def weights_held(self) -> float:
        """The trainer's weights before its first step."""
        return PROCESS + self.weights + 4 * self.shape.adapter

    @property
    def activations(self) -> int:
        """The thriftiest step: gradients and moments of the adapter, layers computed twice, one path."""
        return self.footprint.bytes(max(SMALLEST, self.context), TWICE)

    @property
    def trainer(self) -> float:
        """The least at the height of a step."""
        return self.weights_held + self.activations / SHARE

    @property
    def cache(self) -> int:
        """Keys and values of `CONVERSATIONS` conversations at full context."""
        return CONVERSATIONS * self.context * self.shape.cached

    @property
    def engine_weights(self) -> float:
        """Base model and adapters."""
        adapters = VLLM_LORAS if self.engine == "vllm" else 2
        return PROCESS + self.weights + adapters * self.element * self.shape.adapter

    @property
    def engine_asleep(self) -> float:
        """The engine's memory while the trainer works. On a CPU it keeps everything."""
        if not self.cuda:
            return self.engine_weights + self.cache
        return PROCESS if self.engine == "vllm" else self.engine_weights

    @property
    def needed(self) -> float:
        """The least memory of the device."""
        sampling = self.trainer_at_rest + self.engine_weights + self.cache
        return max(sampling, self.trainer + self.engine_asleep)

    def card(self, gib: int) -> CardPlan:
        """The plan of a step on a device of this size."""
        used = self.weights_held + self.engine_asleep
        step = plan_memory(
            self.footprint,
            token_budget=None,
            cpu=not self.cuda,
            checkpointing="auto",
            longest=self.context,
            free=max(0, int(gib * GIB - used)),
            used=int(used),
        )
        return CardPlan(gib=gib, fits=self.needed <= gib * GIB and step.fits, step=step)


def plan_hardware(
    model: str,
    *,
    rank: int = 16,
    context: int | None = None,
    engine: str = "builtin",
    bits: int = 16,
    cuda: bool = True,
) -> HardwarePlan:
    """The plan of a model (`find_config` has the names). `context` None: 8192, or what the model allows.

    Raises ConfigurationError for an unknown model, and for a choice that cannot be.
    """
    model, named = split_bits(model)
    bits = bits if named == 16 else named
    check_bits(engine, bits)
    name, config = find_config(model)
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        context = min(8192, most or 8192)
    elif most is not None and context > most:
        raise ConfigurationError(f"{name} takes at most {most} tokens; --context is {context}")
    shape = measure_shape(name, config, LoraSpec(r=rank, alpha=2 * rank), cuda=cuda)
    return HardwarePlan(
        model=name,
        shape=shape,
        config=config,
        rank=rank,
        context=context,
        engine=engine,
        bits=bits,
        cuda=cuda,
    )


def memory_parts(plan: HardwarePlan) -> Iterator[tuple[str, float]]:
    """Yields the parts of the trainer at its height and of the engine awake: what, bytes.

    Their sum is more than what is needed: they are not all in memory at the same time.
    """
    adapter = (4 + STATE) * plan.shape.adapter
    yield "trainer: base weights", plan.weights
    yield f"trainer: LoRA of rank {plan.rank}, its gradients and moments", adapter
    yield "trainer: activations, at least", plan.trainer - PROCESS - plan.weights - adapter
    yield "engine: base weights and adapters", plan.engine_weights - PROCESS
    yield f"engine: keys and values of {CONVERSATIONS} conversations", plan.cache
    yield "two processes beside their tensors (assumed)", 2 * PROCESS


def cards(plan: HardwarePlan, sizes: Sequence[int] = CARDS) -> list[CardPlan]:
    """Returns the plan of each size."""
    return [plan.card(size) for size in sizes]
