"""What the trainer holds of one open model, and how it comes back where an update fails."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from art.training.checkpoint import OPTIMIZER_FILE, TrainerState, content_of
from art.training.critic import Critic, load_critic, save_critic
from art.training.lora import is_plain_adapter
from art.training.optimizer import Rng, load_moments, parse_rng, save_moments, spell_rng
from art.training.tally import TokenColumns
from art.wire.models import ManifestEntry
from art.wire.training import LoraSpec, OptimizerSpec, TrainingKind


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
    batches: int = 0
    """Those whose gradients the parameters hold, since the last step."""
    rng: Rng
    critic: Critic | None = None
    content: dict[str, ManifestEntry] | None = None
    """The manifest of the checkpoint that holds exactly what is in memory; None: no checkpoint does."""
    recorded: tuple[int, TokenColumns] | None = None
    """The step that the newest batch started from, and what was computed of its loss entries."""

    def restore(self, state: TrainerState, checkpoint: Path, make_critic: Callable[[], Critic]) -> None:
        """Restores everything except the weights. Raises: CheckpointError."""
        if not is_plain_adapter(checkpoint):
            load_moments(self.optimizer, self.parameters, checkpoint / OPTIMIZER_FILE)
        if state.critic:
            self.critic = make_critic()
            load_critic(self.critic, checkpoint)
        self.spec, self.step, self.rng = state.optimizer, state.step, parse_rng(state.rng)
        self.kind = state.kind

    def differs_in_step_alone(self, state: TrainerState, checkpoint: Path, base_model: str) -> bool:
        """Returns whether a checkpoint holds what is in memory under another number: its step was carried
        forward. Its files are verified already.
        """
        here = self.state(base_model, state.base_fingerprint).model_copy(update={"step": state.step})
        return not self.update and here == state and self.content == content_of(checkpoint)

    def forget_gradients(self) -> None:
        """Holds the gradient of no batch any more."""
        self.batches = 0
        self.optimizer.zero_grad(set_to_none=True)

    def save(self, folder: Path) -> list[str]:
        """Write everything but the weights; the files."""
        save_moments(self.optimizer, self.parameters, folder / OPTIMIZER_FILE)
        critic = [] if self.critic is None else save_critic(self.critic, folder)
        return [OPTIMIZER_FILE, *critic]

    def state(self, base_model: str, base_fingerprint: str) -> TrainerState:
        """Returns the state for a checkpoint."""
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


@contextmanager
def unchanged_on_failure(
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    critic: Critic | None,
    *,
    several: bool,
) -> Iterator[None]:
    """Put weights and moments back when the block raises. Without `several` updates or a critic nothing needs
    to be kept: an update fails before it moves anything.
    """
    if not several and critic is None:
        yield
        return
    weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    moments = copy.deepcopy(optimizer.state_dict())
    values = None if critic is None else critic.state()
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[name])
        optimizer.load_state_dict(moments)
        if critic is not None and values is not None:
            critic.load(values)
        raise


@contextmanager
def fresh_moments(optimizer: torch.optim.Optimizer, *, when: bool) -> Iterator[None]:
    """Starts the block without moments if `when` is true; restores the earlier ones if it raises, or made no
    update.
    """
    if not when:
        yield
        return
    earlier = optimizer.state
    optimizer.state = defaultdict(dict)
    try:
        yield
    except BaseException:
        optimizer.state = earlier
        raise
    if not optimizer.state:
        optimizer.state = earlier
