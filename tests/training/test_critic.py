"""The value head: its loss against a loop, its gradients, its memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from art.errors import CheckpointError, TrainingError
from art.training.checkpoint import CRITIC_FILE
from art.training.critic import Critic, load_critic, save_critic
from art.training.losses.base import LossInputs
from art.wire.algorithm import CriticSpec

HIDDEN = 6


def inputs(weights_E: torch.Tensor, normalizer: float) -> LossInputs:
    zero_E = torch.zeros_like(weights_E)
    return LossInputs(
        logprobs_E=zero_E,
        sampled_logprobs_E=zero_E,
        proximal_logprobs_E=zero_E,
        advantages_E=zero_E,
        weights_E=weights_E,
        sequence_E=torch.zeros(len(weights_E), dtype=torch.long),
        normalizer=normalizer,
    )


def critic(dtype: torch.dtype = torch.float32) -> Critic:
    return Critic(HIDDEN, dtype=dtype, device="cpu")


def learn(made: Critic, steps: range, spec: CriticSpec | None = None) -> list[float]:
    """Steps on batches that follow from their numbers; returns the gradient norms."""
    norms = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        hidden_PD = torch.randn(9, HIDDEN, generator=generator)
        returns_E = hidden_PD @ torch.arange(HIDDEN, dtype=torch.float32) + 2.0
        values_E = made.values(hidden_PD, 0.0)
        output = made.loss(
            values_E, values_E.detach(), returns_E, inputs(torch.ones(9), 9.0), spec or CriticSpec(clip=None)
        )
        output.loss.backward()
        norms.append(made.step(spec or CriticSpec(clip=None)))
    return norms


def slow_loss(
    values: list[float],
    old: list[float],
    returns: list[float],
    weights: list[float],
    normalizer: float,
    clip: float,
) -> tuple[float, float]:
    total = clipped = 0.0
    for value, before, goal, weight in zip(values, old, returns, weights, strict=True):
        held = min(max(value, before - clip), before + clip)
        total += weight * 0.5 * max((value - goal) ** 2, (held - goal) ** 2) / normalizer
        clipped += weight * ((held - goal) ** 2 > (value - goal) ** 2) / normalizer
    return total, clipped


def test_a_fresh_critic_expects_nothing() -> None:
    assert torch.equal(critic().values(torch.randn(5, HIDDEN), 1.0), torch.zeros(5))


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_is_the_loop_and_shares_add_up(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values_E, old_E, returns_E = (
        torch.randn(40, generator=generator, dtype=torch.float64) * scale for scale in (1.0, 0.5, 1.0)
    )
    weights_E = torch.rand(40, generator=generator, dtype=torch.float64)
    spec = CriticSpec(clip=0.2)
    whole = critic().loss(values_E, old_E, returns_E, inputs(weights_E, 17.0), spec)
    expected = slow_loss(values_E.tolist(), old_E.tolist(), returns_E.tolist(), weights_E.tolist(), 17.0, 0.2)
    assert float(whole.loss) == pytest.approx(expected[0], rel=1e-12)
    assert float(whole.metrics["loss/value_clipped_share"]) == pytest.approx(expected[1], rel=1e-12)
    parts = [
        critic().loss(values_E[s], old_E[s], returns_E[s], inputs(weights_E[s], 17.0), spec)
        for s in (slice(0, 13), slice(13, 40))
    ]
    for name, value in whole.metrics.items():
        assert float(sum(part.metrics[name] for part in parts)) == pytest.approx(float(value), rel=1e-12)


def test_a_value_that_moved_too_far_towards_its_goal_has_no_gradient() -> None:
    values_E = torch.tensor([0.5, 0.1, -0.5], requires_grad=True)
    returns_E, old_E = torch.ones(3), torch.zeros(3)
    critic().loss(
        values_E, old_E, returns_E, inputs(torch.ones(3), 1.0), CriticSpec(clip=0.2)
    ).loss.backward()
    assert values_E.grad is not None
    # 0.5 moved beyond 0.2 towards 1: held. 0.1 moved little. -0.5 moved away: the larger error is its own.
    assert values_E.grad.tolist() == pytest.approx([0.0, -0.9, -1.5])


def test_without_a_clip_it_is_the_squared_error() -> None:
    values_E, returns_E = torch.tensor([5.0, -1.0]), torch.tensor([1.0, 1.0])
    output = critic().loss(
        values_E, torch.zeros(2), returns_E, inputs(torch.ones(2), 2.0), CriticSpec(clip=None)
    )
    assert float(output.loss) == (16 + 4) / 4 and float(output.metrics["loss/value_clipped_share"]) == 0.0


def test_gradients_in_float64() -> None:
    made = critic(torch.float64)
    learn_in_float64(made)
    returns_E, weights_E = torch.randn(7, dtype=torch.float64), torch.rand(7, dtype=torch.float64)
    old_E = torch.randn(7, dtype=torch.float64) * 0.1

    def loss(hidden_PD: torch.Tensor) -> torch.Tensor:
        values_E = made.values(hidden_PD, 1.0)
        return made.loss(values_E, old_E, returns_E, inputs(weights_E, 3.0), CriticSpec(clip=0.2)).loss

    assert torch.autograd.gradcheck(loss, (torch.randn(7, HIDDEN, dtype=torch.float64, requires_grad=True),))


def learn_in_float64(made: Critic) -> None:
    generator = torch.Generator().manual_seed(3)
    state = {
        key: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for key, value in made.state().items()
    }
    made.load(state)


@pytest.mark.parametrize("trunk", [0.0, 0.25, 1.0])
def test_the_trunk_gets_its_share_of_the_gradient(trunk: float) -> None:
    made = critic(torch.float64)
    learn_in_float64(made)
    hidden_PD = torch.randn(4, HIDDEN, dtype=torch.float64, requires_grad=True)
    values_P = made.values(hidden_PD, trunk)
    assert torch.equal(values_P, made.values(hidden_PD, 1.0)), "the share changes no value"
    values_P.sum().backward()
    weight_D = made.state()["critic.weight"]
    if trunk:
        assert hidden_PD.grad is not None
        torch.testing.assert_close(hidden_PD.grad, trunk * weight_D.expand(4, HIDDEN))
    else:
        assert hidden_PD.grad is None
    assert made.grad_norm(CriticSpec()) > 0


def test_it_computes_in_float32_on_a_trunk_in_bfloat16() -> None:
    made = critic(torch.bfloat16)
    assert made.values(torch.randn(3, HIDDEN, dtype=torch.bfloat16), 0.5).dtype == torch.float32


@pytest.mark.slow
def test_it_learns_what_is_linear_in_the_trunk() -> None:
    made = critic()
    learn(made, range(300), CriticSpec(clip=None, learning_rate=0.1, max_grad_norm=100.0))
    hidden_PD = torch.randn(50, HIDDEN)
    expected_P = hidden_PD @ torch.arange(HIDDEN, dtype=torch.float32) + 2.0
    assert float((made.values(hidden_PD, 0.0) - expected_P).detach().abs().max()) < 0.1


def test_the_gradient_is_clipped_and_reported_unclipped() -> None:
    loose, tight = critic(), critic()
    norms = [
        learn(made, range(1), CriticSpec(clip=None, max_grad_norm=norm))
        for made, norm in ((loose, 1e6), (tight, 1e-9))
    ]
    assert norms[0] == norms[1]
    # AdamW divides by the gradient's size, so only its epsilon lets a tiny gradient be seen.
    assert not torch.equal(loose.state()["critic.weight"], tight.state()["critic.weight"])


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    made = critic()
    learn(made, range(2))
    before = made.state()
    (made.values(torch.full((1, HIDDEN), float("inf")), 0.0)).sum().backward()
    with pytest.raises(TrainingError, match="The critic's gradient norm is"):
        made.step(CriticSpec())
    assert all(torch.equal(value, before[key]) for key, value in made.state().items())
    again = critic()
    learn(again, range(2))
    assert learn(made, range(2, 4)) == learn(again, range(2, 4)), "no gradient is left over"


@pytest.mark.parametrize("steps", [0, 3])
def test_saved_and_restored_it_goes_on_to_the_same_bytes(tmp_path: Path, steps: int) -> None:
    straight, first, second = critic(), critic(), critic()
    learn(straight, range(steps + 3))
    learn(first, range(steps))
    assert save_critic(first, tmp_path) == [CRITIC_FILE]
    learn(second, range(50, 52))  # of another past
    load_critic(second, tmp_path)
    learn(second, range(steps, steps + 3))
    one, other = straight.state(), second.state()
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_its_state_is_a_copy() -> None:
    made = critic()
    learn(made, range(1))
    before = made.state()
    kept = {key: value.clone() for key, value in before.items()}
    learn(made, range(1, 3))
    assert all(torch.equal(value, kept[key]) for key, value in before.items())
    made.load(before)
    learn(made, range(1, 3))
    assert all(torch.equal(value, kept[key]) for key, value in before.items())


def test_another_critics_file_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    made = critic()
    learn(made, range(2))
    before = made.state()
    save_critic(Critic(HIDDEN + 1, dtype=torch.float32, device="cpu"), tmp_path)
    with pytest.raises(CheckpointError, match=r"'critic.weight' in .* is \(7,\), not \(6,\)"):
        load_critic(made, tmp_path)
    partial = {key: value for key, value in before.items() if key != "critic.exp_avg.bias"}
    with pytest.raises(CheckpointError, match=r"1 tensors are missing .*'critic\.exp_avg\.bias'"):
        made.load(partial)
    (tmp_path / CRITIC_FILE).write_bytes(b"12")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_critic(made, tmp_path)
    assert all(torch.equal(value, before[key]) for key, value in made.state().items())
