"""What a step depends on beside the weights: AdamW's moments by parameter name, and the state of the RNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from art.training.tensors import check_same, read_tensors

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW remembers of each parameter."""

Parameters = Mapping[str, torch.nn.Parameter]
Rng = dict[str, torch.Tensor]
"""Generator states by kind of device."""


def save_moments(optimizer: torch.optim.AdamW, parameters: Parameters, path: Path) -> None:
    """AdamW's memory by parameter name; no tensor at all before the first step."""
    moments = {
        f"{moment}.{name}": optimizer.state[parameter][moment].detach().cpu().contiguous()
        for name, parameter in parameters.items()
        if parameter in optimizer.state
        for moment in MOMENTS
    }
    save_file(moments, str(path))


def load_moments(optimizer: torch.optim.AdamW, parameters: Parameters, path: Path) -> None:
    """Give the optimizer the memory that `save_moments` wrote.

    Raises CheckpointError when the file is unreadable or its tensors are not those of `parameters`.
    """
    moments = read_tensors(path)
    if not moments:
        return
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    check_same(
        path,
        {f"{m}.{name}": () if m == "step" else shapes[name] for m in MOMENTS for name in shapes},
        moments,
    )
    for name, parameter in parameters.items():
        # AdamW keeps its step counts on the CPU.
        optimizer.state[parameter] = {
            m: moments[f"{m}.{name}"].to("cpu" if m == "step" else parameter.device) for m in MOMENTS
        }


def seeded_rng(seed: int) -> Rng:
    """The state of a generator that was just seeded; the generators themselves stay as they are."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_rng()


def get_rng() -> Rng:
    rng = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        rng["cuda"] = torch.cuda.get_rng_state()
    return rng


def set_rng(rng: Rng) -> None:
    torch.set_rng_state(rng["cpu"])
    if "cuda" in rng and torch.cuda.is_available():
        torch.cuda.set_rng_state(rng["cuda"])


def spell_rng(rng: Rng) -> dict[str, str]:
    """As hexadecimal text, for JSON."""
    return {device: state.numpy().tobytes().hex() for device, state in rng.items()}


def parse_rng(text: Mapping[str, str]) -> Rng:
    """What `spell_rng` wrote."""
    return {
        device: torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
        for device, state in text.items()
    }
