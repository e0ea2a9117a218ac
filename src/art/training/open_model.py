"""What the trainer holds of one open model, and how it comes back where an update fails."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from art.errors import ConfigurationError
from art.training.checkpoint import (
    AVERAGE_FILE,
    OPTIMIZER_FILE,
    EntropyState,
    SavedCritic,
    TrainerState,
    check_same,
    content_of,
    read_tensors,
    write_tensors,
)
from art.training.critic import Critic, described, load_critic, save_critic
from art.training.first_pass import AveragedLora, copy_weights
from art.training.lora import is_plain_adapter
from art.training.optimizer import Moments, Rng, parse_rng, spell_rng
from art.training.tally import TokenColumns
from art.wire.algorithm import Algorithm, EntropySpec
from art.wire.models import ManifestEntry
from art.wire.training import LoraSpec, OptimizerName, OptimizerSpec, TrainingKind, TrainRequest

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer dtypes by their size in bytes."""


@dataclass(kw_only=True, slots=True)
class OpenModel:
    """One open model."""

    adapter: str
    lora: LoraSpec | None
    """None: all weights are trained."""
    parameters: dict[str, torch.nn.Parameter]
    make_moments: Callable[[OptimizerName], Moments]
    """Makes an optimizer of the parameters, without moments."""
    moments: Moments
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
    average: dict[str, torch.Tensor] | None = None
    """The weights of the LoRA that follows this one; None: none does."""
    entropy: EntropyState | None = None
    """The state after steps with a target entropy; None: there was none."""
    content: dict[str, ManifestEntry] | None = None
    """The manifest of the checkpoint that holds exactly what is in memory; None: no checkpoint does."""
    recorded: tuple[int, TokenColumns] | None = None
    """The step that the newest batch started from, and what was computed of its loss entries."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.moments.optimizer

    def check_optimizer(self, name: OptimizerName, kind: TrainingKind) -> None:
        """Raises ConfigurationError where a step with this optimizer cannot follow the one before."""
        if name != self.moments.name and kind == self.kind and self.optimizer.state:
            raise ConfigurationError(
                f"the optimizer's state at step {self.step} is of {self.moments.name!r}, and this step asks "
                f"for {name!r}. Go on with optimizer={self.moments.name!r}, or begin another model from "
                "these weights: `await backend.fork_checkpoint(model, name, weights_only=True)`."
            )

    def restore(
        self, state: TrainerState, checkpoint: Path, make_critic: Callable[[SavedCritic | None], Critic]
    ) -> None:
        """Restores everything except the weights. Raises: CheckpointError."""
        if state.optimizer is not None:
            self.moments = self.make_moments(state.optimizer.name)
        if not is_plain_adapter(checkpoint):
            self.moments.load(checkpoint / OPTIMIZER_FILE)
        if state.critic:
            self.critic = make_critic(state.critic if isinstance(state.critic, SavedCritic) else None)
            load_critic(self.critic, checkpoint)
        if state.average:
            found = read_tensors(checkpoint / AVERAGE_FILE)
            shapes = {name: tuple(one.shape) for name, one in self.parameters.items()}
            check_same(checkpoint / AVERAGE_FILE, shapes, found)
            self.average = self._copies()
            copy_weights(found, self.average)
        self.entropy = state.entropy
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
        self.moments.save(folder / OPTIMIZER_FILE)
        files = [OPTIMIZER_FILE]
        files += [] if self.critic is None else save_critic(self.critic, folder)
        if self.average is not None:
            write_tensors(folder / AVERAGE_FILE, self.average)
            files.append(AVERAGE_FILE)
        return files

    def averaged(self) -> AveragedLora:
        """Returns the LoRA that follows this one; a copy of it, where none did yet."""
        assert self.lora is not None
        if self.average is None:
            self.average = self._copies()
        return AveragedLora(self.lora, self.average)

    def coefficient_of(self, spec: EntropySpec | None) -> float:
        """Returns the coefficient of the next step's entropy bonus."""
        if spec is None or spec.target is None or self.entropy is None:
            return 0.0 if spec is None else spec.coefficient
        return self.entropy.coefficient if self.entropy.mean <= spec.target else 0.0

    def follow(self, algorithm: Algorithm, entropy: float) -> None:
        """After a step of this mean entropy: moves the coefficient towards the target, and the LoRA that
        follows towards this one.
        """
        spec, kl = algorithm.entropy, algorithm.kl
        if spec is not None and spec.target is not None and spec.step is not None:
            before = spec.coefficient if self.entropy is None else self.entropy.coefficient
            rise = spec.step * ((entropy < spec.target) - (entropy > spec.target))
            self.entropy = EntropyState(coefficient=max(0.0, before + rise), mean=entropy)
        if kl is not None and kl.mixup is not None and self.step % (kl.every or 1) == 0:
            for name, one in self.averaged().weights.items():
                one.lerp_(self.parameters[name].detach(), kl.mixup)

    def _copies(self) -> dict[str, torch.Tensor]:
        return {name: one.detach().clone() for name, one in self.parameters.items()}

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
            critic=self.saved_critic,
            average=self.average is not None,
            entropy=self.entropy,
        )

    def digest(self) -> str:
        """Returns a fingerprint of all that the next step depends on.

        Of each tensor, the sum of its bits as integers: where a billion weights are, in a second.
        """
        tensors = {key: one.detach() for key, one in self.parameters.items()}
        tensors |= self.moments.tensors()
        tensors |= {} if self.critic is None else self.critic.state()
        tensors |= {f"average.{key}": one for key, one in (self.average or {}).items()}
        digest = hashlib.sha256(f"{self.step} {self.update} {self.entropy} {spell_rng(self.rng)}".encode())
        for key in sorted(tensors):
            bits = tensors[key].contiguous().reshape(-1).view(INTEGERS[tensors[key].element_size()])
            digest.update(f"{key} {int(bits.sum(dtype=torch.int64))}\n".encode())
        return digest.hexdigest()

    @property
    def saved_critic(self) -> bool | SavedCritic:
        if self.critic is None or self.critic.adapter is None:
            return self.critic is not None
        return self.critic.adapter.saved

    @property
    def adapters(self) -> list[str]:
        """Returns the names of its weights, the critic's first."""
        own = self.critic.adapter if self.critic is not None else None
        return [self.adapter] if own is None else [own.name, self.adapter]

    def check_critic(self, name: str, request: TrainRequest) -> None:
        """Raises ConfigurationError where a step asks for another critic than the model's, or for one that it
        cannot have.
        """
        spec = request.algorithm.critic
        if spec is None:
            return
        has = None if self.critic is None else described(self.critic.shape)
        if has not in (None, described(spec)):
            raise ConfigurationError(
                f"{name!r} has the critic {has} since an earlier step or its checkpoint, and "
                f"this step asks for {described(spec)}. Ask for the one it has, or begin from a checkpoint "
                "without one."
            )
        if spec.kind == "adapter" and self.lora is None:
            raise ConfigurationError(
                f"critic 'adapter' is a LoRA beside the policy's, and all weights of {name!r} are trained. "
                "Train a LoRA, or use critic={'kind': 'probe'}."
            )
        if spec.kind == "adapter" and request.gradient != "step":
            raise ConfigurationError(
                "critic 'adapter' learns in whole steps, and this batch only adds its gradient or is scored. "
                "Leave the critic out."
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
def right_moments(model: OpenModel, spec: OptimizerSpec, kind: TrainingKind) -> Iterator[None]:
    """Has the block train with this optimizer: without moments where those that there are were made by
    another kind of training. The earlier ones come back if it raises, or made no update.
    """
    earlier = model.moments
    if spec.name != earlier.name or kind != model.kind:
        model.moments = model.make_moments(spec.name)
    try:
        yield
    except BaseException:
        model.moments = earlier
        raise
    if not model.optimizer.state:
        model.moments = earlier
