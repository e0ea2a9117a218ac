"""The difference of two checkpoints, against numpy over all weights at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from art_extensions.replay.checkpoint_difference import compare_checkpoints

FILE, STATE = "adapter_model.safetensors", "trainer_state.json"


def folder(path: Path, state: str = "{}", **tensors: torch.Tensor) -> Path:
    path.mkdir()
    save_file(tensors, path / FILE)
    (path / STATE).write_text(state)
    return path


@pytest.mark.parametrize("seed", range(5))
def test_errors_are_those_of_all_weights_together(tmp_path: Path, seed: int) -> None:
    torch.manual_seed(seed)
    start, there, new = ({"a": torch.randn(3, 5), "b": torch.randn(7)} for _ in range(3))
    found = compare_checkpoints(
        folder(tmp_path / "0", **start), folder(tmp_path / "1", **there), folder(tmp_path / "2", **new)
    )
    flat = [
        np.concatenate([side[name].double().numpy().ravel() for name in "ab"]) for side in (start, there, new)
    ]
    gap, update, other = flat[2] - flat[1], flat[1] - flat[0], flat[2] - flat[0]
    norm = np.linalg.norm
    assert found.weights_error == pytest.approx(norm(gap) / norm(flat[1]))
    assert found.update_error == pytest.approx(norm(gap) / norm(update))
    assert found.update_cosine == pytest.approx(update @ other / norm(update) / norm(other))
    assert (found.tensors, found.differing, found.bit_equal) == (2, 2, False)
    assert found.first is not None and found.first.tensor == "a"


def test_bits_are_compared_and_not_numbers(tmp_path: Path) -> None:
    """Zero has two signs, and no number is equal to NaN."""
    start = folder(tmp_path / "0", a=torch.ones(2), b=torch.ones(1))
    there = folder(tmp_path / "1", a=torch.tensor([0.0, torch.nan]), b=torch.ones(1))
    same = folder(tmp_path / "2", a=torch.tensor([0.0, torch.nan]), b=torch.ones(1))
    assert compare_checkpoints(start, there, same).bit_equal
    signed = folder(tmp_path / "3", a=torch.tensor([-0.0, torch.nan]), b=torch.ones(1))
    assert compare_checkpoints(start, there, signed).differing == 1
    half = folder(tmp_path / "4", a=torch.tensor([0.0, torch.nan]), b=torch.ones(1, dtype=torch.float64))
    found = compare_checkpoints(start, there, half)
    assert found.first is not None and found.first.tensor == "b"
    state = folder(tmp_path / "5", '{"step": 2}', a=torch.tensor([0.0, torch.nan]), b=torch.ones(1))
    found = compare_checkpoints(start, there, state)
    assert (found.differing, found.same_state, found.bit_equal) == (0, False, False)


def test_a_tensor_of_one_side_alone_is_a_difference(tmp_path: Path) -> None:
    start, there = folder(tmp_path / "0", a=torch.ones(2)), folder(tmp_path / "1", a=torch.ones(2))
    more = folder(tmp_path / "2", a=torch.ones(2), z=torch.ones(1))
    found = compare_checkpoints(start, there, more)
    assert found.first is not None and (found.first.tensor, found.first.error) == ("z", None)
    assert (found.tensors, found.differing) == (2, 1)
