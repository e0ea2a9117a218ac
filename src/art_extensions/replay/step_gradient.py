"""The gradient of a step: the one that its first update gives the optimizer, of all ranks and before it is
clipped. It is computed at the weights before the step, so that a change can be compared with the step as it
was; later updates (minibatches, epochs) begin at other weights.

No run keeps gradients. To compare a changed step, the step is replayed unchanged too, and both write theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.optim.optimizer import register_optimizer_step_pre_hook

from art.training.checkpoint import write_tensors

FILE = "gradient.safetensors"
CLIP_EPSILON = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to the norm."""


@contextmanager
def write_first_gradient(
    parameters: Mapping[str, torch.nn.Parameter], path: Path, *, max_grad_norm: float
) -> Iterator[None]:
    """Has the first step of these parameters' optimizer within the block write their gradient into a file.
    Where it does not step, there is no file. max_grad_norm: at which the step clips.
    """
    own = {id(one) for one in parameters.values()}

    def write(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        groups = optimizer.param_groups
        if path.exists() or {id(one) for group in groups for one in group["params"]} != own:
            return
        kept = min(1.0, max_grad_norm / (groups[0]["grad_norm"] + CLIP_EPSILON))
        found = {name: one.grad / kept for name, one in parameters.items() if one.grad is not None}
        write_tensors(path, found)

    hook = register_optimizer_step_pre_hook(write)
    try:
        yield
    finally:
        hook.remove()


def gradient_error(unchanged: Path, changed: Path) -> float:
    """Returns `|changed - unchanged| / |unchanged|` of two files, in the Euclidean norm over all weights; a
    weight that a file lacks has the gradient 0.
    """
    gap, square = 0.0, 0.0
    with safe_open(str(unchanged), "pt") as one, safe_open(str(changed), "pt") as other:
        names = [set(file.keys()) for file in (one, other)]
        for name in sorted(names[0] | names[1]):
            was, now = (
                file.get_tensor(name).double() if name in known else None
                for file, known in zip((one, other), names, strict=True)
            )
            if was is not None:
                square += float(was.square().sum())
            difference = now if was is None else was if now is None else now - was
            assert difference is not None
            gap += float(difference.square().sum())
    return (gap / square) ** 0.5 if square else 0.0 if not gap else float("inf")
