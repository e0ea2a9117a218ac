"""PPO's critic: a linear head on last hidden states, with an optimizer of its own.

    probe    the policy's hidden states                        value = weight . hidden + bias
    adapter  those of the base with a LoRA of the critic's     value = 20 (weight . hidden / D + bias)

AdamW moves every weight by about its rate: a probe's values by more the larger the model is, an adapter's by
about 20 rates in any. Policy and value model forward a micro-batch one after the other, so that one's
activations are in memory at a time.

Letters: P = predictors of a micro-batch, E = loss entries, D = hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from art.errors import TrainingError
from art.training.checkpoint import CRITIC_FILE, SavedCritic, check_same, read_tensors, write_tensors
from art.training.losses.base import LossInputs, LossOutput
from art.training.optimizer import Moments
from art.training.packing.runs import MicroBatch
from art.training.policy import Policy
from art.wire.algorithm import CriticSpec

BETAS = (0.9, 0.999)
"""AdamW's; its weights do not decay."""
SPEED = 20.0
"""How many rates an update moves a value model's values, about, where hidden states are of size 1."""
START = 0.02
"""The deviation of the weights that a value model's head starts from. From 0, its LoRA first follows the
errors of the mean alone, and tells states apart later."""
VALUE_SEED = 1
"""What a value model's head and the A of its LoRA are drawn from: always the same, as no checkpoint keeps a
seed."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ValueAdapter:
    """The LoRA of a value model."""

    name: str
    """The internal one."""
    saved: SavedCritic
    parameters: Mapping[str, torch.nn.Parameter]
    computing: Callable[[], AbstractContextManager[None]]
    """Inside the block it computes instead of the policy's, and alone has gradients."""


class Critic:
    """A head, in at least float32, and an adapter if the critic has one. A fresh one expects nothing of any
    state: a probe exactly 0, a value model about.
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        adapter: ValueAdapter | None = None,
    ) -> None:
        exact = torch.promote_types(dtype, torch.float32)
        start_D = torch.zeros(hidden_size)
        if adapter is not None:
            start_D = torch.randn(hidden_size, generator=torch.Generator().manual_seed(VALUE_SEED)) * START
        self.adapter = adapter
        self._scales = (1.0, 1.0) if adapter is None else (SPEED / hidden_size, SPEED)
        self._parameters = {
            "weight": torch.nn.Parameter(start_D.to(device, exact)),
            "bias": torch.nn.Parameter(torch.zeros((), dtype=exact, device=device)),
            **({} if adapter is None else adapter.parameters),
        }
        self._moments = Moments("adamw", self._parameters, ())
        self._optimizer = self._moments.optimizer

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Returns what is trained."""
        return self._parameters.values()

    @property
    def shape(self) -> CriticSpec:
        """Returns its kind and shape; its numbers come with each step."""
        if self.adapter is None:
            return CriticSpec()
        lora = self.adapter.saved.lora
        return CriticSpec(kind="adapter", rank=lora.r, alpha=lora.alpha)

    @property
    def stepped(self) -> bool:
        return bool(self._optimizer.state)

    def learns_alone(self, spec: CriticSpec, step: int) -> bool:
        """Returns whether the policy waits in the step that starts from `step`."""
        return self.adapter is not None and step < self.adapter.saved.first_step + spec.warmup_steps

    def own_values(self, policy: Policy, micro: MicroBatch) -> torch.Tensor:
        """The value before each entry, [E], by a forward pass of its adapter, which is computing."""
        with policy.recomputing():
            hidden_TD, _ = policy.hidden_of(micro)
        values_P = self.values(hidden_TD[torch.as_tensor(micro.predictor_P, device=hidden_TD.device)], 1.0)
        predictor_E = micro.target_predictor_N[micro.entry_target_E]
        return values_P[torch.as_tensor(predictor_E, device=values_P.device)]

    def values(self, hidden_PD: torch.Tensor, trunk: float) -> torch.Tensor:
        """Expected reward of what follows each hidden state, [P]. `trunk` scales the gradient that flows into
        the hidden states; 0 cuts it off.
        """
        weight_D, bias = self._parameters["weight"], self._parameters["bias"]
        fixed_PD = hidden_PD.detach()
        if trunk == 1.0:
            fixed_PD = hidden_PD
        elif trunk > 0.0:
            fixed_PD = fixed_PD + trunk * (hidden_PD - fixed_PD)  # adds zero; carries the gradient
        of_weight, of_bias = self._scales
        return fixed_PD.to(weight_D.dtype) @ weight_D * of_weight + bias * of_bias

    @staticmethod
    def loss(
        values_E: torch.Tensor,
        old_values_E: torch.Tensor,
        returns_E: torch.Tensor,
        inputs: LossInputs,
        spec: CriticSpec,
    ) -> LossOutput:
        """Squared error / 2; a value that moved more than `clip` from its old one counts the larger of its
        error and the clipped value's (Schulman's PPO2; Huang et al., "37 implementation details", 2022).

        Tokens weigh as in the policy's loss.
        """
        error_E = (values_E - returns_E).square()
        larger_E = error_E
        if spec.clip is not None:
            held_E = old_values_E + (values_E - old_values_E).clamp(-spec.clip, spec.clip)
            larger_E = torch.maximum(error_E, (held_E - returns_E).square())
        loss = inputs.mean(larger_E) / 2
        clipped = inputs.mean((larger_E > error_E).to(error_E.dtype))
        return LossOutput(
            loss=loss,
            metrics={"loss/value": loss.detach(), "loss/value_clipped_share": clipped.detach()},
        )

    def step(self, spec: CriticSpec) -> float:
        """Clip its gradients, step, clear them; returns the norm before clipping.

        Raises TrainingError, with weights and moments as before, when the norm is not finite.
        """
        try:
            norm = self.grad_norm(spec)
            if not math.isfinite(norm):
                raise TrainingError(
                    f"The critic's gradient norm is {norm!r}; it was left as it was. "
                    "Lower `critic.learning_rate`, or look at the rewards of this batch."
                )
            for group in self._optimizer.param_groups:
                group.update(lr=spec.learning_rate, betas=BETAS)
            self._optimizer.step()
        finally:
            self.zero_grad()
        return norm

    def grad_norm(self, spec: CriticSpec) -> float:
        """Clip its gradients in place and return their norm before, so that nothing steps if it is not
        finite.
        """
        return float(torch.nn.utils.clip_grad_norm_(self._parameters.values(), spec.max_grad_norm))

    def zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of weights and moments on the CPU: `critic.<name>` and, after the first step,
        `critic.<moment>.<name>`.
        """
        tensors = {**self._parameters, **self._moments.tensors()}
        return {f"critic.{name}": one.detach().to("cpu", copy=True) for name, one in tensors.items()}

    def load(self, tensors: Mapping[str, torch.Tensor], source: Path = Path(CRITIC_FILE)) -> None:
        """Takes over a copy of what `state` gave. Raises CheckpointError, changing nothing, when the tensors
        are not this critic's.
        """
        moments = self._moments.expected() if len(tensors) > len(self._parameters) else {}
        expected = {f"critic.{name}": one for name, one in {**self._parameters, **moments}.items()}
        check_same(source, {name: tuple(one.shape) for name, one in expected.items()}, tensors)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(tensors[f"critic.{name}"])
        self._moments.restore({name: tensors[f"critic.{name}"].clone() for name in moments})


def described(spec: CriticSpec) -> str:
    """Returns a critic's kind and shape, as the option `critic`.

    >>> described(CriticSpec(kind="adapter")), described(CriticSpec(learning_rate=0.5))
    ("{'kind': 'adapter', 'rank': 16, 'alpha': 32.0}", "{'kind': 'probe'}")
    """
    names = ("kind", "rank", "alpha") if spec.kind == "adapter" else ("kind",)
    return str({name: getattr(spec, name) for name in names})


def save_critic(critic: Critic, folder: Path) -> list[str]:
    """Write `critic.safetensors` into a checkpoint folder; returns its name, for the manifest."""
    write_tensors(folder / CRITIC_FILE, critic.state())
    return [CRITIC_FILE]


def load_critic(critic: Critic, folder: Path) -> None:
    """Restore what `save_critic` wrote. Raises CheckpointError when it is unreadable or another critic's."""
    critic.load(read_tensors(folder / CRITIC_FILE), folder / CRITIC_FILE)
