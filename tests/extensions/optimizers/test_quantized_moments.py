"""AdamW with 8-bit moments: against AdamW in float64, and its quantization against the paper's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from art.errors import ConfigurationError
from art.training.optimizer import Moments, step_optimizer
from art.wire.training import OptimizerSpec

SPEC = OptimizerSpec(name="adamw_8bit", learning_rate=1.0, weight_decay=0.1, max_grad_norm=1e9)
RATE = 1e-2


def stepped(parameter: torch.nn.Parameter, gradients: list[torch.Tensor]) -> Moments:
    moments = Moments("adamw_8bit", {"p": parameter}, {"p"})
    for gradient in gradients:
        parameter.grad = gradient.clone()
        step_optimizer(moments.optimizer, SPEC, learning_rate=RATE, loss=0.0)
    return moments


def adamw(
    start: torch.Tensor, gradients: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loshchilov and Hutter's algorithm in float64: the weights and both moments."""
    found, first, second = start.double(), torch.zeros(1), torch.zeros(1)
    for step, gradient in enumerate(gradients, start=1):
        first = SPEC.betas[0] * first + (1 - SPEC.betas[0]) * gradient.double()
        second = SPEC.betas[1] * second + (1 - SPEC.betas[1]) * gradient.double() ** 2
        size = (second / (1 - SPEC.betas[1] ** step)).sqrt() + SPEC.eps
        found = found * (1 - RATE * SPEC.weight_decay) - RATE * first / (1 - SPEC.betas[0] ** step) / size
    return found, first, second


@settings(max_examples=10, deadline=None)
@given(st.integers(16, 24), st.integers(256, 300), st.integers(0, 2**16))
def test_weights_are_those_of_adamw_but_for_the_quantization(rows: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(rows, columns, generator=generator)
    gradients = [torch.randn(rows, columns, generator=generator) for _ in range(4)]
    parameter = torch.nn.Parameter(start.clone())
    moments = stepped(parameter, gradients)
    wanted, first, second = adamw(start, gradients)
    assert (parameter.double() - wanted).norm() <= 0.05 * (wanted - start.double()).norm()
    state = moments.optimizer.state[parameter]
    for moment, which in ((first, "1"), (second, "2")):
        index, table, scale = (state[f"{name}{which}"] for name in ("state", "qmap", "absmax"))
        whole = table[index.flatten().long()]
        of_block = scale.repeat_interleave(256)[: len(whole)]
        read = (whole * of_block).reshape(moment.shape).double()
        assert (read - moment).norm() <= 0.05 * moment.norm()
        assert len(scale) == -(-parameter.numel() // 256)


@pytest.mark.slow
def test_a_trainer_that_started_without_the_library_takes_it_when_a_step_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")  # of a base that is not quantized
    program = """
import sys
from types import SimpleNamespace
from art.training.worker import leave_out_bitsandbytes

leave_out_bitsandbytes(SimpleNamespace(model_path=sys.argv[1], base_model="", bits=16))
assert sys.modules["bitsandbytes"] is None
import torch
from art.training.optimizer import Moments

Moments("adamw_8bit", {"p": torch.nn.Parameter(torch.zeros(2))}, set())
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_one_step_from_nothing_is_adamws() -> None:
    """The update is made before the moments are rounded."""
    start = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    gradient = torch.randn(64, 64, generator=torch.Generator().manual_seed(4))
    parameter = torch.nn.Parameter(start.clone())
    stepped(parameter, [gradient])
    assert torch.allclose(parameter.double(), adamw(start, [gradient])[0], atol=1e-6)


def test_small_parameters_keep_exact_moments() -> None:
    start = torch.randn(8, 16, generator=torch.Generator().manual_seed(5))
    gradients = [torch.randn(8, 16, generator=torch.Generator().manual_seed(at)) for at in range(5)]
    parameter = torch.nn.Parameter(start.clone())
    stepped(parameter, gradients)
    assert torch.allclose(parameter.double(), adamw(start, gradients)[0], atol=1e-6)


def test_float64_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"'w' is float64. Use optimizer='adamw'"):
        Moments("adamw_8bit", {"w": torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))}, {"w"})
