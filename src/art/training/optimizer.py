"""AdamW, what other optimizers have beside it (extensions of kind `optimizer`), and what a step depends on
beside the weights: learning rate, moments by parameter name, state of the RNG. The numbers may change from
step to step, the moments stay.

The rate of a step is a linear warm-up, then constant or falling. Where none is given, it is that of the
literature for a model's size: 5e-5 x (2000 / hidden size)^e for all weights and ten times that for a LoRA; e
is 0.0775 for Qwen models, 0.781 for Llama. (Thinking Machines, "LoRA without regret" and the Tinker
cookbook's `get_lr`, 2025.) Other families take Qwen's e, the cautious one for small models.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from art.errors import TrainingError
from art.extensions import OPTIMIZER, load_extension
from art.training.checkpoint import check_same, read_tensors, write_tensors
from art.wire.training import OptimizerName, OptimizerSpec

BASE_RATE = 5e-5
LORA_FACTOR = 10.0
EXPONENTS = {"llama": 0.781}
QWEN_EXPONENT = 0.0775


def rate_by_size(config: Any, *, lora: bool) -> float:
    """The literature's rate for a model with this configuration (`hidden_size`, `model_type`).

    >>> from types import SimpleNamespace
    >>> round(rate_by_size(SimpleNamespace(hidden_size=2560, model_type="qwen3"), lora=True), 6)
    0.000491
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    exponent = EXPONENTS.get(text.model_type, QWEN_EXPONENT)
    return float(BASE_RATE * (LORA_FACTOR if lora else 1.0) * (2000 / text.hidden_size) ** exponent)


def rate_at(spec: OptimizerSpec, step: int, rate: float) -> float:
    """The rate of the step that starts from `step` (0: the first), of a full rate of `rate`.

    The first of W warm-up steps has 1 / (W + 1) of it: a step without any would waste its rollouts. A fall
    ends just above 0 at the last of `total_steps`, and steps beyond keep that rate.

    >>> spec = OptimizerSpec(learning_rate=1.0, warmup_steps=1, schedule="linear", total_steps=5)
    >>> [rate_at(spec, step, 1.0) for step in range(6)]
    [0.5, 1.0, 0.75, 0.5, 0.25, 0.25]
    """
    if step < spec.warmup_steps:
        return rate * (step + 1) / (spec.warmup_steps + 1)
    if spec.schedule == "constant" or spec.total_steps is None:
        return rate
    last = spec.total_steps - 1
    done = (min(step, last) - spec.warmup_steps) / (spec.total_steps - spec.warmup_steps)
    return rate * (1 - done if spec.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


Parameters = Mapping[str, torch.nn.Parameter]
Rng = dict[str, torch.Tensor]
"""Generator states by kind of device."""


START = OptimizerSpec(learning_rate=1e-5)
"""Numbers of an optimizer that has not stepped yet; each step brings its own."""


class OptimizerKind:
    """AdamW. An extension overrides what is different in its optimizer."""

    def make(self, parameters: Parameters, matrices: Collection[str]) -> torch.optim.Optimizer:
        """Returns an optimizer without moments. matrices: names of the parameters that are one matrix each;
        the others are vectors, stacks of matrices, embeddings and output layers.

        Raises ConfigurationError where it cannot train them, MissingExtraError.
        """
        return make_optimizer(list(parameters.values()), START)

    def moments(self, parameter: torch.Tensor, *, is_matrix: bool) -> dict[str, torch.Tensor]:
        """Returns what it remembers of a parameter: tensors on `meta`, of the right shapes and dtypes."""
        exact = torch.empty_like(parameter, device="meta")
        return {"step": torch.empty((), device="meta"), "exp_avg": exact, "exp_avg_sq": exact}

    def restore(
        self,
        optimizer: torch.optim.Optimizer,
        parameter: torch.nn.Parameter,
        moments: Mapping[str, torch.Tensor],
    ) -> None:
        """Takes over what was remembered of a parameter; the tensors are on the CPU."""
        # AdamW keeps its step counts on the CPU.
        optimizer.state[parameter] = {
            name: value.clone() if name == "step" else value.to(parameter.device)
            for name, value in moments.items()
        }


def optimizer_kind(name: OptimizerName) -> OptimizerKind:
    """Raises ConfigurationError where the extension is missing or cannot be loaded."""
    if name == "adamw":
        return OptimizerKind()
    kind: OptimizerKind = load_extension(OPTIMIZER, name)
    return kind


class Moments:
    """An optimizer of some parameters, and what it remembers of them by their names."""

    def __init__(self, name: OptimizerName, parameters: Parameters, matrices: Collection[str]) -> None:
        """Raises what `OptimizerKind.make` raises."""
        self.name = name
        self._kind = optimizer_kind(name)
        self._parameters, self._matrices = parameters, matrices
        self.optimizer = self._kind.make(parameters, matrices)

    def expected(self) -> dict[str, torch.Tensor]:
        """The moments after a step, on `meta`: `<moment>.<parameter name>`."""
        return {
            f"{moment}.{name}": value
            for name, parameter in self._parameters.items()
            for moment, value in self._kind.moments(parameter, is_matrix=name in self._matrices).items()
        }

    def bytes_to_come(self) -> int:
        """Returns the memory that the first step will take; 0 after it."""
        return 0 if self.optimizer.state else sum(one.nbytes for one in self.expected().values())

    def tensors(self) -> dict[str, torch.Tensor]:
        """The moments of the parameters that have any; none at all before the first step."""
        return {
            f"{moment}.{name}": torch.as_tensor(self.optimizer.state[parameter][moment]).detach()
            for name, parameter in self._parameters.items()
            if parameter in self.optimizer.state
            for moment in self._kind.moments(parameter, is_matrix=name in self._matrices)
        }

    def save(self, path: Path) -> None:
        write_tensors(path, self.tensors())

    def load(self, path: Path) -> None:
        """Loads what `save` wrote.

        Raises CheckpointError when the file is unreadable or its tensors are not those of the parameters.
        """
        saved = read_tensors(path)
        if saved:
            check_same(path, {name: tuple(one.shape) for name, one in self.expected().items()}, saved)
        self.restore(saved)

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Takes over what `tensors` gave, on the CPU: of every parameter, or of none."""
        self.optimizer.state.clear()
        for name, parameter in self._parameters.items() if saved else ():
            named = self._kind.moments(parameter, is_matrix=name in self._matrices)
            moments = {one: saved[f"{one}.{name}"].to(empty.dtype) for one, empty in named.items()}
            self._kind.restore(self.optimizer, parameter, moments)


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


class DropoutDraws:
    """The draws of dropout in the updates of one step: for each micro-batch from the step's random state and
    the micro-batch's number, so that it is the same on whichever rank. Where nothing drops out,
    nothing is drawn.

        draws.begin(), then for each micro-batch: draws.seed(number); draws.end()
    """

    def __init__(self, *, act: bool) -> None:
        """act: whether a dropout layer of what is trained is on."""
        self.act = act
        self._seed = 0
        self._after: Rng | None = None

    def begin(self) -> None:
        """An update begins, or begins again from the same random state."""
        if self.act:
            self._seed = int(torch.randint(2**62, ()))
            self._after = get_rng()

    def seed(self, number: int) -> None:
        """The micro-batch with this number is computed next; a second time, it draws the same."""
        if self.act:
            torch.manual_seed((self._seed + number * _ODD) % 2**63)

    def end(self) -> None:
        """The random state does not depend on how many micro-batches this rank had."""
        if self._after is not None:
            set_rng(self._after)


_ODD = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: numbers that follow each other get seeds far apart."""


def spell_rng(rng: Rng) -> dict[str, str]:
    """Returns the state as hexadecimal text, for JSON."""
    return {device: state.numpy().tobytes().hex() for device, state in rng.items()}


def parse_rng(text: Mapping[str, str]) -> Rng:
    """Reads the output of `spell_rng`."""
    return {
        device: torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
        for device, state in text.items()
    }


def make_optimizer(parameters: Sequence[torch.nn.Parameter], spec: OptimizerSpec) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters,
        lr=spec.learning_rate or 0.0,  # each step brings its own
        betas=spec.betas,
        eps=spec.eps,
        weight_decay=spec.weight_decay,
        foreach=True,
    )


def has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether any parameter would be moved by more than its momentum and its decay."""
    gradients = (one.grad for group in optimizer.param_groups for one in group["params"])
    return any(gradient is not None and bool(gradient.any()) for gradient in gradients)


def has_finite_gradient(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether no gradient holds NaN or infinity."""
    gradients = [one.grad for group in optimizer.param_groups for one in group["params"]]
    sums = [gradient.sum() for gradient in gradients if gradient is not None]  # which keep both
    return not sums or bool(torch.stack(sums).isfinite().all())


@contextmanager
def earlier_gradients(optimizer: torch.optim.Optimizer, *, keep_new: bool) -> Iterator[None]:
    """Takes away the gradients that are held for as long as the block runs. Afterwards they are there again,
    with those of the block added; without them when it raises, or where they are not to be kept.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    gradients = [one.grad for one in parameters]
    optimizer.zero_grad(set_to_none=True)
    try:
        yield
        if keep_new:
            gradients = [_sum(before, one.grad) for before, one in zip(gradients, parameters, strict=True)]
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def _sum(earlier: torch.Tensor | None, new: torch.Tensor | None) -> torch.Tensor | None:
    if earlier is None or new is None:
        return new if earlier is None else earlier
    return new.add_(earlier)


def step_optimizer(
    optimizer: torch.optim.Optimizer, spec: OptimizerSpec, *, learning_rate: float, loss: float
) -> float:
    """Clip and step; returns the gradient's norm before clipping. Gradients are cleared whatever happens.

    Raises TrainingError before anything moved when loss or gradient are not finite.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, spec.max_grad_norm))
    try:
        if not (math.isfinite(norm) and math.isfinite(loss)):
            raise TrainingError(
                f"The loss is {loss!r} and its gradient norm {norm!r}; the adapter was left as it was. "
                "Lower the learning rate, or look at the rewards and logprobs of this batch."
            )
        for group in optimizer.param_groups:
            numbers = spec.model_dump(include={"betas", "eps", "momentum", "weight_decay"})
            group.update(numbers, lr=learning_rate, grad_norm=norm)  # the norm is for who looks on
        optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
    return norm
