"""Read a PEFT LoRA folder: `adapter_config.json` and `adapter_model.safetensors`. Anything else in it is
refused.

PEFT has many options that change what an adapter computes. An option that we do not know to be harmless and
that is set makes the folder unfit, by name: a silently wrong policy would be worse.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from art.errors import CheckpointError
from art.process.foreign_files import parse_json
from art.wire.models import ADAPTER_CONFIG_FILE, ADAPTER_FILE

PREFIX = "base_model.model."

HARMLESS = frozenset(
    """peft_type auto_mapping peft_version base_model_name_or_path revision inference_mode task_type r
    lora_alpha lora_dropout target_modules exclude_modules use_rslora init_lora_weights layers_to_transform
    layers_pattern rank_pattern runtime_config megatron_core qalora_group_size loftq_config
    eva_config target_parameters""".split()
)
"""Options that say nothing about the forward pass, or that are honoured (r, lora_alpha, use_rslora,
rank_pattern, and target_parameters where they are the experts')."""
INNER = ".base_layer"
"""What PEFT adds to a module's name for the inner one of two wrappers, of its first parameter."""
OFF: tuple[Any, ...] = (None, False, 0, "", "none", [], {})
PLAIN_INITS = (True, False, "gaussian", "eva", "orthogonal")
"""Other initialisations change the base weights, which an adapter folder does not carry."""


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """One adapter as read: module name -> (A [r, in], B [out, r])."""

    path: Path
    alpha: float
    rank_stabilized: bool
    weights: dict[str, tuple[Tensor, Tensor]]
    rank: int
    """That of its configuration: of each expert, where A has the rows of all of them."""
    digest: str
    """sha256 of both files."""

    def is_stacked(self, name: str) -> bool:
        """Returns whether these are the matrices of all experts of a layer."""
        return name.endswith(INNER) or name + INNER in self.weights

    def scale(self, rank: int) -> float:
        """alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA (Kalajdzievski, 2023)."""
        return self.alpha / (math.sqrt(rank) if self.rank_stabilized else rank)


def folder_digest(path: Path) -> str:
    """Raises: CheckpointError when one of the two files is missing."""
    digest = hashlib.sha256()
    for name in (ADAPTER_CONFIG_FILE, ADAPTER_FILE):
        digest.update(_read(path, name))
    return digest.hexdigest()


def read_adapter(path: Path) -> PeftAdapter:
    """Raises: CheckpointError that names what is missing, broken or unsupported."""
    try:
        config = dict(parse_json(_read(path, ADAPTER_CONFIG_FILE)))
        alpha, rank = float(config.get("lora_alpha", 0.0)), int(config.get("r") or 0)
        tensors = load(_read(path, ADAPTER_FILE))
    except (ValueError, TypeError, LookupError, OverflowError, SafetensorError) as error:
        raise CheckpointError(f"adapter {str(path)!r} is broken or incomplete: {error}") from error
    _check_options(path, config)
    return PeftAdapter(
        path=path,
        alpha=alpha,
        rank_stabilized=bool(config.get("use_rslora", False)),
        weights=_pairs(path, tensors),
        rank=rank,
        digest=folder_digest(path),
    )


def _read(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise CheckpointError(f"adapter {str(path)!r} has no readable {name!r}: {error.strerror}") from error


def _check_options(path: Path, config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise CheckpointError(
            f"adapter {str(path)!r} is of type {config.get('peft_type')!r}; only 'LORA' works"
        )
    for name, value in config.items():
        if name not in HARMLESS and value not in OFF:
            raise CheckpointError(
                f"adapter {str(path)!r} uses the PEFT option {name!r} = {value!r}, which is not supported; "
                "train it without"
            )
    init = config.get("init_lora_weights", True)
    if init not in PLAIN_INITS:
        raise CheckpointError(
            f"adapter {str(path)!r} was initialised with {init!r}, which changes the base weights; "
            "convert it with PEFT's `path_initial_model_for_weight_conversion`"
        )
    if "lora_alpha" not in config:
        raise CheckpointError(f"adapter {str(path)!r}: {ADAPTER_CONFIG_FILE} has no 'lora_alpha'")


def _pairs(path: Path, tensors: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    halves: dict[str, dict[str, Tensor]] = {}
    for key, tensor in sorted(tensors.items()):
        module, _, half = key.removesuffix(".weight").rpartition(".lora_")
        if not key.startswith(PREFIX) or not key.endswith(".weight") or half not in ("A", "B"):
            raise CheckpointError(
                f"adapter {str(path)!r} has a tensor {key!r}, which is not a LoRA matrix of a Linear"
            )
        halves.setdefault(module.removeprefix(PREFIX), {})[half] = tensor
    for module, pair in halves.items():
        if len(pair) != 2:
            raise CheckpointError(f"adapter {str(path)!r} has only lora_{next(iter(pair))} of {module!r}")
    if not halves:
        raise CheckpointError(f"adapter {str(path)!r} has no LoRA matrices")
    return {module: (pair["A"], pair["B"]) for module, pair in halves.items()}


def check_layer(model: nn.Module, adapter: PeftAdapter, name: str) -> nn.Linear:
    """Returns the layer of this name, which the adapter fits. Raises: CheckpointError."""
    try:
        layer = model.get_submodule(name)
    except AttributeError as error:
        raise CheckpointError(
            f"adapter {str(adapter.path)!r} has weights for {name!r}, which the base model does not "
            "have: it was trained on another model"
        ) from error
    if not isinstance(layer, nn.Linear):
        raise CheckpointError(
            f"adapter {str(adapter.path)!r} targets {name!r}, a {type(layer).__name__}; "
            "only Linear layers work"
        )
    if layer is model.get_output_embeddings():
        raise CheckpointError(
            f"adapter {str(adapter.path)!r} targets the output layer {name!r}: not supported"
        )
    a, b = adapter.weights[name]
    if a.shape[1] != layer.in_features or b.shape[0] != layer.out_features or a.shape[0] != b.shape[1]:
        raise CheckpointError(
            f"adapter {str(adapter.path)!r}, layer {name!r}: A {tuple(a.shape)} and B {tuple(b.shape)} "
            f"do not fit a layer from {layer.in_features} to {layer.out_features}: "
            "it was trained on another model"
        )
    return layer
