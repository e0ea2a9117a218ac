"""Qwen3 shapes with random weights, made where they are computed: nothing is downloaded, and nothing is kept
but one folder for parts that need a model on a disk.

`flops_per_token` counts what a training step must multiply. N = parameters in matrix products, the output
layer among them. With a LoRA no gradient of the base's weights is needed:

    forward 2 N, gradient of the inputs 2 N, once more where layers are computed twice 2 N      = 6 N, or 4 N
    attention to P tokens: 4 x layers x heads x head size x P forward, twice that backward, and once more
"""

from __future__ import annotations

import gc
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from art.training.policy import Policy
from art_extensions.doctor.hardware import ARCHITECTURES, Architecture

TINY = Architecture("qwen3", 64, 2, 4, 2, 16, 128, 512, 4096, True)
"""Stands in for each model when a run is dry."""
PUBLISHED_BY = "prime-rl, 1 x H100"
"""PrimeIntellect-ai/prime-rl, benchmarks/results/BENCHMARKS.md at 30bf494f (2026-02-07): RL, LoRA of rank 16,
rows of 16,384, layers computed twice, FlashAttention 3."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A model's shape, the row to fill, and what the best open trainer publishes for it."""

    name: str
    architecture: Architecture
    row: int = 16384
    published: float | None = None
    """Tokens a second."""
    published_gib: float | None = None

    def config(self) -> Qwen3Config:
        config = self.architecture.config()
        config.max_position_embeddings = max(config.max_position_embeddings, 2 * self.row)
        return config

    @property
    def parameters(self) -> int:
        """Those in matrix products."""
        a = self.architecture
        heads = (2 * a.num_attention_heads + 2 * a.num_key_value_heads) * a.head_dim
        layer = a.hidden_size * heads + 3 * a.hidden_size * a.intermediate_size
        return a.num_hidden_layers * layer + a.vocab_size * a.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Of all weights in bfloat16, read once a decoding step."""
        return 2 * self.parameters

    @property
    def cached_bytes(self) -> int:
        """Keys and values of a token, in bfloat16."""
        a = self.architecture
        return 2 * 2 * a.num_hidden_layers * a.num_key_value_heads * a.head_dim

    def flops_per_token(self, pairs: float, *, twice: bool) -> float:
        """Multiplications and additions of a training step for a token that attends to `pairs` others."""
        a = self.architecture
        attention = 4 * a.num_hidden_layers * a.num_attention_heads * a.head_dim * pairs
        return (6 if twice else 4) * self.parameters + (4 if twice else 3) * attention


def find_shape(name: str, *, dry: bool) -> Shape:
    """Returns the shape of `qwen3-0.6b`, `-1.7b`, `-4b` or `-8b`; a tiny one by that name when dry."""
    if dry:
        return Shape(name=name, architecture=TINY, row=512)
    known = {key.partition("/")[2].lower(): one for key, one in ARCHITECTURES.items()}
    published = {"qwen3-0.6b": (13_340.0, 5.1), "qwen3-4b": (6_230.0, 23.3)}
    speed, gib = published.get(name, (None, None))
    return Shape(name=name, architecture=known[name], published=speed, published_gib=gib)


def make_causal_lm(shape: Shape, device: str, **options: Any) -> Any:
    """A model of random weights in bfloat16, made on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(shape.config(), dtype=torch.bfloat16, **options)


def make_policy(shape: Shape, device: str, *, twice: bool) -> Policy:
    """The same as the trainer's policy. twice: layers are computed twice."""
    policy = Policy(make_causal_lm(shape, device), name=f"bench/{shape.name}")
    policy.checkpoint_activations = twice
    return policy


def model_folder(shape: Shape, work: Path, device: str) -> Path:
    """The model on a disk, for what loads a folder. It is made by the first part that asks."""
    folder = work / shape.name
    if not folder.exists():
        made = work / f"{shape.name}.{os.getpid()}"
        make_causal_lm(shape, device).save_pretrained(made)
        try:
            made.rename(folder)
        except OSError:  # another part was faster
            shutil.rmtree(made)
    return folder


def wait_for(device: str) -> None:
    """Waits until the device has computed all that it was told to."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def start_peak(device: str) -> None:
    """Forgets the peak of memory so far, and what nobody holds any more."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib(device: str) -> float | None:
    """Returns the peak since `start_peak`; None off a GPU, where the process has other memory too."""
    return torch.cuda.max_memory_allocated() / 2**30 if device.startswith("cuda") else None
