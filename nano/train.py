"""The supervised training loop:

stages that end when a gate of measured skill is passed, never by count alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM


class GateError(RuntimeError):
    """A stage reached its limit of steps without passing its gate."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of training.

    `loss` draws a batch and scores it. `gate` measures the model and says (passed, what was measured); it is
    asked every `check_every` steps, first after `min_steps`, and the stage fails after `max_steps`.
    """

    name: str
    loss: Callable[[Qwen3ForCausalLM], Tensor]
    gate: Callable[[Qwen3ForCausalLM], tuple[bool, str]]
    learning_rate: float
    final_rate: float
    decay_steps: int
    """Steps over which the learning rate falls from `learning_rate` to `final_rate`, linearly."""
    min_steps: int
    max_steps: int
    check_every: int
    warmup_steps: int = 20
    fresh: bool = False
    """Whether the optimizer forgets the stages before."""


def train(model: Qwen3ForCausalLM, stages: list[Stage], *, smoke: bool = False) -> None:
    """Train in place through all stages;

    raises GateError. `smoke` runs three steps of each and asks no gate.
    """
    optimizer = _new_optimizer(model)
    for stage in stages:
        if stage.fresh:
            optimizer = _new_optimizer(model)
        _run(model, optimizer, stage, smoke)


def _new_optimizer(model: Qwen3ForCausalLM) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)


def _run(model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, stage: Stage, smoke: bool) -> None:
    started = time.monotonic()
    model.train()
    for step in range(1, (3 if smoke else stage.max_steps) + 1):
        for group in optimizer.param_groups:
            group["lr"] = _rate(stage, step)
        loss = stage.loss(model)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if smoke or step < stage.min_steps or (step - stage.min_steps) % stage.check_every:
            continue
        passed, measured = stage.gate(model)
        seconds = time.monotonic() - started
        print(f"{stage.name}: step {step}, {seconds:.0f} s, loss {loss.item():.3f}, {measured}", flush=True)
        if passed:
            return
    if not smoke:
        raise GateError(
            f"stage {stage.name!r} did not pass its gate in {stage.max_steps} steps: try another seed"
        )


def _rate(stage: Stage, step: int) -> float:
    warm = min(1.0, step / stage.warmup_steps)
    fallen = min(1.0, step / stage.decay_steps)
    return warm * (stage.learning_rate + fallen * (stage.final_rate - stage.learning_rate))
