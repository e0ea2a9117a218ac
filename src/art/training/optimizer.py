"""AdamW and what it depends on beside the weights: learning rate, moments by parameter name, state of the
RNG. The numbers may change from step to step, the moments stay.

The rate of a step is a linear warm-up, then constant or falling. Where none is given, it is that of the
literature for a model's size: 5e-5 x (2000 / hidden size)^e for all weights and ten times that for a LoRA; e
is 0.0775 for Qwen models, 0.781 for Llama. (Thinking Machines, "LoRA without regret" and the Tinker
cookbook's `get_lr`, 2025.) Other families take Qwen's e, the cautious one for small models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from art.errors import TrainingError
from art.training.checkpoint import check_same, read_tensors
from art.wire.training import OptimizerSpec

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
    """Loads the moments that `save_moments` wrote into the optimizer.

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
            group.update(lr=learning_rate, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)
        optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
    return norm
