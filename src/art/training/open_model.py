"""One open model: what is trained, its optimizer and its RNG; to a checkpoint and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from art.training.checkpoint import OPTIMIZER_FILE, TrainerState
from art.training.critic import Critic, load_critic, save_critic
from art.training.memory import Rng, load_moments, parse_rng, save_moments, spell_rng
from art.training.plain_adapter import is_plain
from art.wire.training import LoraSpec, OptimizerSpec, TrainingKind

START = OptimizerSpec(learning_rate=1e-5, weight_decay=0.0, max_grad_norm=1.0)
"""Numbers of an optimizer that has not stepped yet; each step brings its own."""


@dataclass(kw_only=True, slots=True)
class OpenModel:
    """One open model."""

    adapter: str
    lora: LoraSpec | None
    """None: all weights are trained."""
    parameters: dict[str, torch.nn.Parameter]
    optimizer: torch.optim.AdamW
    spec: OptimizerSpec | None = None
    kind: TrainingKind = "rl"
    """What the moments were made by."""
    step: int = 0
    update: int = 0
    """Updates of the step in the making; 0 between steps."""
    rng: Rng
    critic: Critic | None = None

    def restore(self, state: TrainerState, checkpoint: Path, make_critic: Callable[[], Critic]) -> None:
        """Everything but the weights. Raises: CheckpointError."""
        if not is_plain(checkpoint):
            load_moments(self.optimizer, self.parameters, checkpoint / OPTIMIZER_FILE)
        if state.critic:
            self.critic = make_critic()
            load_critic(self.critic, checkpoint)
        self.spec, self.step, self.rng = state.optimizer, state.step, parse_rng(state.rng)
        self.kind = state.kind

    def save(self, folder: Path) -> list[str]:
        """Write everything but the weights; the files."""
        save_moments(self.optimizer, self.parameters, folder / OPTIMIZER_FILE)
        critic = [] if self.critic is None else save_critic(self.critic, folder)
        return [OPTIMIZER_FILE, *critic]

    def state(self, base_model: str, base_fingerprint: str) -> TrainerState:
        """What a checkpoint says of it."""
        return TrainerState(
            step=self.step,
            base_model=base_model,
            base_fingerprint=base_fingerprint,
            lora=self.lora,
            optimizer=self.spec,
            kind=self.kind,
            rng=spell_rng(self.rng),
            critic=self.critic is not None,
        )
