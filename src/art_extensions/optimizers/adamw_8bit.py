"""AdamW with moments of 8 bits (Dettmers et al., "8-bit optimizers via block-wise quantization",
arXiv:2110.02861), by bitsandbytes.

Each moment is an index of 256 values a number, and a scale for each block of 256 numbers. A parameter of
fewer than 4,096 numbers keeps float32 moments: its memory is nothing, and its values matter most.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

import torch

from art.errors import ConfigurationError, require_extra
from art.process.imports import import_lock
from art.training.optimizer import OptimizerKind, Parameters

BLOCK = 256
"""Numbers that share a scale."""
SMALLEST = 4096
"""Numbers of the smallest parameter whose moments are quantized."""


class AdamW8bitKind(OptimizerKind):
    """AdamW with block-wise quantized moments."""

    def make(self, parameters: Parameters, matrices: Collection[str]) -> torch.optim.Optimizer:
        modules: dict[str, Any] = sys.modules
        if modules.get("bitsandbytes", self) is None:
            del modules["bitsandbytes"]  # a trainer of a base that is not quantized starts without it
        require_extra("quantized", "optimizer='adamw_8bit'")
        exact = [name for name, one in parameters.items() if one.dtype == torch.float64]
        if exact:
            raise ConfigurationError(
                f"optimizer='adamw_8bit' computes in float32, and {exact[0]!r} is float64. Use "
                "optimizer='adamw'."
            )
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # of kernels that are not taken
        with import_lock:
            library = import_module("bitsandbytes.optim")
        made: torch.optim.Optimizer = library.AdamW8bit(
            list(parameters.values()), lr=0.0, weight_decay=0.0, min_8bit_size=SMALLEST
        )
        return made

    def moments(self, parameter: torch.Tensor, *, is_matrix: bool) -> dict[str, torch.Tensor]:
        step = torch.empty((), dtype=torch.int64, device="meta")
        if parameter.numel() < SMALLEST:
            exact = torch.empty(parameter.shape, dtype=torch.float32, device="meta")
            return {"step": step, "state1": exact, "state2": exact}
        index = torch.empty(parameter.shape, dtype=torch.uint8, device="meta")
        scales = torch.empty(-(-parameter.numel() // BLOCK), dtype=torch.float32, device="meta")
        return {"step": step, "state1": index, "state2": index, "absmax1": scales, "absmax2": scales}

    def restore(
        self,
        optimizer: torch.optim.Optimizer,
        parameter: torch.nn.Parameter,
        moments: Mapping[str, torch.Tensor],
    ) -> None:
        state = {name: value.to(parameter.device) for name, value in moments.items() if name != "step"}
        if "absmax1" in state:
            maps = optimizer.name2qmap
            state["qmap1"] = maps["dynamic"].to(parameter.device)
            state["qmap2"] = maps["udynamic"].to(parameter.device)
        optimizer.state[parameter] = {"step": int(moments["step"]), **state}


ADAMW_8BIT = AdamW8bitKind()
