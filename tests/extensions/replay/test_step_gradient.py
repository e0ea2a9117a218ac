"""The gradient of a step: as it is before clipping, and how far a change moves it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from art.training.optimizer import make_optimizer, step_optimizer
from art.wire.training import OptimizerSpec
from art_extensions.replay.step_gradient import gradient_error, write_first_gradient

pytestmark = pytest.mark.extension

SPEC = OptimizerSpec(learning_rate=1e-3, max_grad_norm=0.5)


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_the_first_gradient_is_written_unclipped(tmp_path: Path, factor: float) -> None:
    parameters = {name: torch.nn.Parameter(torch.randn(4, 3)) for name in ("a", "b", "unused")}
    others = [torch.nn.Parameter(torch.randn(2))]
    expected = {name: factor * torch.randn(4, 3) for name in ("a", "b")}
    path = tmp_path / "gradient.safetensors"
    with write_first_gradient(parameters, path, max_grad_norm=SPEC.max_grad_norm):
        others[0].grad = torch.ones(2)
        step_optimizer(make_optimizer(others, SPEC), SPEC, learning_rate=1e-3, loss=0.0)
        assert not path.exists(), "it is another optimizer's"
        optimizer = make_optimizer(list(parameters.values()), SPEC)
        for gradients in (expected, {name: torch.ones(4, 3) for name in expected}):
            for name, gradient in gradients.items():
                parameters[name].grad = gradient.clone()
            step_optimizer(optimizer, SPEC, learning_rate=1e-3, loss=0.0)
    found = load_file(path)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=0.0)
    path.unlink()
    step_optimizer(optimizer, SPEC, learning_rate=1e-3, loss=0.0)
    assert not path.exists(), "nobody looks on any more"


def test_the_error_is_that_of_all_weights_together(tmp_path: Path) -> None:
    one, other = tmp_path / "one.safetensors", tmp_path / "other.safetensors"
    save_file({"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}, one)
    save_file({"a": torch.tensor([3.0, 1.0]), "c": torch.tensor([2.0])}, other)
    assert gradient_error(one, other) == pytest.approx((1 + 16 + 4) ** 0.5 / 5)
    assert gradient_error(one, one) == 0.0
    save_file({"a": torch.zeros(2)}, one)
    assert gradient_error(one, one) == 0.0 and gradient_error(one, other) == float("inf")
