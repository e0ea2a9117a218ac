"""PPO's critic: a linear probe on the policy's last hidden states, with an optimizer of its own.

Letters: P = predictors of a micro-batch, E = loss entries, D = hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from art.errors import CheckpointError, TrainingError
from art.training.checkpoint import CRITIC_FILE, read_tensors
from art.training.losses.base import LossInputs, LossOutput
from art.training.optimizer import MOMENTS
from art.wire.algorithm import CriticSpec


class Critic:
    """value = weight . hidden + bias, in at least float32. It starts at zero: no state is worth anything."""

    def __init__(self, hidden_size: int, *, dtype: torch.dtype, device: torch.device | str) -> None:
        exact = torch.promote_types(dtype, torch.float32)
        self._parameters = {
            "weight": torch.nn.Parameter(torch.zeros(hidden_size, dtype=exact, device=device)),
            "bias": torch.nn.Parameter(torch.zeros((), dtype=exact, device=device)),
        }
        self._optimizer = torch.optim.AdamW(list(self._parameters.values()), weight_decay=0.0)

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Returns what is trained."""
        return self._parameters.values()

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
        return fixed_PD.to(weight_D.dtype) @ weight_D + bias

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
                group["lr"] = spec.learning_rate
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
        tensors = {f"critic.{name}": one.detach() for name, one in self._parameters.items()}
        for name, parameter in self._parameters.items():
            for moment in MOMENTS if parameter in self._optimizer.state else ():
                tensors[f"critic.{moment}.{name}"] = self._optimizer.state[parameter][moment]
        return {key: value.to("cpu", copy=True) for key, value in tensors.items()}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state` gave. Raises CheckpointError, changing nothing, when the tensors are not
        this critic's.
        """
        shapes = {f"critic.{name}": tuple(one.shape) for name, one in self._parameters.items()}
        stepped = any(key not in shapes for key in tensors)
        if stepped:
            for name, one in self._parameters.items():
                for moment in MOMENTS:
                    shapes[f"critic.{moment}.{name}"] = () if moment == "step" else tuple(one.shape)
        found = {key: tuple(value.shape) for key, value in tensors.items()}
        if found != shapes:
            wrong = sorted(key for key in {*found, *shapes} if found.get(key) != shapes.get(key))
            raise CheckpointError(
                f"These are not the tensors of this critic: {wrong[0]!r} is "
                f"{found.get(wrong[0], 'missing')}, expected {shapes.get(wrong[0], 'none of that name')}."
            )
        self._optimizer.state.clear()
        for name, parameter in self._parameters.items():
            with torch.no_grad():
                parameter.copy_(tensors[f"critic.{name}"])
            if stepped:
                self._optimizer.state[parameter] = {
                    # AdamW keeps its step counts on the CPU.
                    moment: tensors[f"critic.{moment}.{name}"].to(
                        "cpu" if moment == "step" else parameter.device, copy=True
                    )
                    for moment in MOMENTS
                }


def save_critic(critic: Critic, folder: Path) -> list[str]:
    """Write `critic.safetensors` into a checkpoint folder; returns its name, for the manifest."""
    save_file(critic.state(), str(folder / CRITIC_FILE))
    return [CRITIC_FILE]


def load_critic(critic: Critic, folder: Path) -> None:
    """Restore what `save_critic` wrote. Raises CheckpointError when it is unreadable or another critic's."""
    critic.load(read_tensors(folder / CRITIC_FILE))
