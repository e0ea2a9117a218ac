"""A base model in shards: each rank keeps its part of every layer, and gathers a layer while it computes.

FSDP2 shards the frozen base alone. A LoRA that is attached afterwards is no part of it: its tensors are plain
and the same on all ranks, so that optimizer, clipping, checkpoints and sums are those of ranks with a whole
base each. What is different: ranks must forward equally often, because each forward pass gathers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from art.errors import ConfigurationError
from art.training.causal_lm import decoder_layers
from art.training.ranks.group import RankGroup


def shard_base(causal_lm: Any, ranks: RankGroup, device: str) -> None:
    """Divide the decoder's layers among all ranks, and put everything on this rank's device. The model is on
    the CPU, and no LoRA is attached yet; its weights are frozen from now on.

    Raises ConfigurationError for a model whose layers are not known.
    """
    layers = decoder_layers(causal_lm)
    if not layers:
        raise ConfigurationError(
            f"trainer.sharding 'fsdp' divides decoder layers, and {type(causal_lm).__name__} marks none. "
            "Leave sharding out."
        )
    causal_lm.requires_grad_(False)
    mesh = DeviceMesh.from_group(ranks.tensors, torch.device(device).type)
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    _move_the_rest(causal_lm, torch.device(device))


@torch.no_grad()
def _move_the_rest(causal_lm: torch.nn.Module, device: torch.device) -> None:
    """Embeddings, the last norm and the output layer are whole on every rank."""
    for tensor in (*causal_lm.parameters(), *causal_lm.buffers()):
        if not isinstance(tensor, DTensor) and tensor.device.type != device.type:
            tensor.data = tensor.data.to(device)  # tied ones stay one


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns what this rank keeps of a weight."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_gathered_weight(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor that autograd keeps is a weight: its memory is given back after its layer."""
    base = tensor._base if tensor._is_view() else tensor
    return isinstance(base, torch.nn.Parameter)


def gather_whole(tensor: torch.Tensor) -> torch.Tensor:
    """A weight as it is without shards. All ranks ask for it at the same time."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
