"""The value model through the tree: gradients of policy and values equal those of plain rows, its warm-up,
its memory, its checkpoints.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_policies import MODEL, causal_lm, games, policy, qwen3, randomize

from art.batch.algorithms import resolve
from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow, Untrainable
from art.batch.build import build_batch
from art.errors import ConfigurationError, TokenMismatchError, TrainingError
from art.training.memory_plan import STATE, MemoryPlanner, measure_footprint
from art.training.step import BatchStep
from art.training.tally import Tally, TokenRecord
from art.training.trainer import Trainer
from art.wire.algorithm import Algorithm
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest

LORA = LoraSpec(r=3, alpha=6)
OWN = {"kind": "adapter", "rank": 5, "alpha": 10.0, "learning_rate": 1e-2}
CONTEXT = Untrainable(reason="greedy", drawn="temperature = 0.0")
Gradients = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Turn:
    """A reply as this test made it."""

    prompt: list[int]
    ids: list[int]
    trained: bool
    reward: float


def make_turns(seed: int) -> list[list[Turn]]:
    """Rollouts of two prompts with ragged turns, of which some are context alone."""
    rng = np.random.default_rng(seed)

    def ids(count: int) -> list[int]:
        return rng.integers(0, 23, count).tolist()

    rollouts = []
    for _ in range(2):
        start = ids(6)
        for _ in range(3):
            turns, context = [], list(start)
            count = int(rng.integers(1, 5))
            for number in range(count):
                reply = ids(int(rng.integers(1, 5)))
                trained = bool(rng.random() < 0.7) or number == count - 1
                reward = round(float(rng.normal()) * 64) / 64  # which float32 holds exactly, sums too
                turns.append(Turn(list(context), reply, trained, reward))
                context += reply + ids(int(rng.integers(0, 3)))
            rollouts.append(turns)
    return rollouts


def batch_of(rollouts: list[list[Turn]], algorithm: Algorithm) -> Batch:
    rows = []
    for number, turns in enumerate(rollouts):
        samples = [
            SampleRow(
                sample_id=f"{number}.{at}",
                prompt_ids=turn.prompt,
                completion_ids=turn.ids,
                completion_logprobs=[-1.0] * len(turn.ids),
                untrainable=None if turn.trained else CONTEXT,
            )
            for at, turn in enumerate(turns)
        ]
        earned = {f"{number}.{at}": turn.reward for at, turn in enumerate(turns)}
        rows.append(
            RolloutRow(
                rollout=str(number),
                reward=math.fsum(earned.values()),
                samples=samples,
                turn_rewards=earned if algorithm.advantage.kind == "turn_gae" else {},
            )
        )
    return build_batch([GroupRow(rollouts=rows[:3]), GroupRow(rollouts=rows[3:])], algorithm=algorithm)


def request_of(batch: Batch, algorithm: Algorithm, step: int = 0, **more: Any) -> TrainRequest:
    return TrainRequest(
        model=MODEL,
        step=step,
        algorithm=algorithm,
        optimizer=OptimizerSpec(learning_rate=1e-2),
        normalizer=batch.normalizer,
        **more,
    )


def set_head(weight_D: torch.Tensor, bias: torch.Tensor) -> None:
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        weight_D.copy_(torch.randn(len(weight_D), generator=generator, dtype=torch.float64) * 0.2)
        bias.fill_(0.02)


def nudge(parameters: dict[str, torch.Tensor]) -> None:
    """As an update would: ratios are no longer 1, and values have moved, some of them beyond the clip."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name in sorted(parameters):
            noise = torch.randn(parameters[name].shape, generator=generator, dtype=torch.float64)
            parameters[name].add_(noise * 0.1)


def by_the_trainer(batch: Batch, algorithm: Algorithm, budget: int) -> tuple[Gradients, dict[str, float]]:
    """The gradients of one update from moved weights, as a step accumulates them."""
    made = Trainer(policy(dtype=torch.float64), token_budget=budget)
    made.open(MODEL, LORA)
    model, asked = made._open[MODEL], request_of(batch, algorithm)
    made._give_critic(model, asked)
    critic = model.critic
    assert critic is not None and critic.adapter is not None
    weight_D, bias, *_ = critic.parameters()
    randomize(model.parameters, seed=1)
    randomize(dict(critic.adapter.parameters), seed=2)
    set_head(weight_D, bias)
    made._weights.activate(model.adapter)
    step = BatchStep(made._learner(model, asked), batch.tree, batch.entries, asked, budget)
    step.prepare()
    head = {"weight": weight_D, "bias": bias}
    own = {f"value.{name}": one for name, one in critic.adapter.parameters.items()}
    every = {**model.parameters, **own, **head}
    nudge(every)
    rows_E = np.arange(len(batch.entries), dtype=np.int64)
    record = TokenRecord(batch.entries.logprob_E, step.columns.sampled_E, [rows_E], all_columns=False)
    tally = Tally(1, lambda *_: None, record)
    step.gradient(rows_E, tally)
    assert tally._shares[0].packing.micro_batches
    found = {name: one.grad for name, one in every.items() if one.grad is not None}
    return found, dict(tally._totals.shares)


class PlainModel:
    """A LoRA of PEFT on a model of transformers with its own attention: one row at a time."""

    def __init__(self, rank: int, seed: int) -> None:
        self.model = get_peft_model(
            causal_lm(qwen3(), "sdpa", torch.float64),
            LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"),
        ).eval()
        named = self.model.named_parameters()
        self.trained = {name.replace(".default.", "."): one for name, one in named if "lora_" in name}
        randomize(self.trained, seed=seed)

    def hidden(self, turn: Turn) -> torch.Tensor:
        """Those that predict the turn's ids."""
        ids = torch.tensor([turn.prompt + turn.ids])
        hidden_LD = self.model.base_model.model.model(input_ids=ids).last_hidden_state[0]
        return hidden_LD[len(turn.prompt) - 1 : -1]

    def logprobs(self, turn: Turn) -> torch.Tensor:
        logits = self.model.base_model.model.lm_head(self.hidden(turn))
        return logits.log_softmax(-1)[torch.arange(len(turn.ids)), torch.tensor(turn.ids)]


def paper_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """Each advantage as the sum over all later errors, as in equation 16 of arXiv:1506.02438."""
    following = [*values[1:], 0.0]
    errors = [r + gamma * after - v for r, after, v in zip(rewards, following, values, strict=True)]
    count = len(errors)
    return [sum((gamma * lam) ** (j - k) * errors[j] for j in range(k, count)) for k in range(count)]


def credit(rollouts: list[list[Turn]], values: list[list[list[float]]], algorithm: Algorithm) -> list[Any]:
    """Of each rollout: the advantage of each token of its trained turns, and (turn, token, goal, tokens) of
    each value that learns.
    """
    spec, found = algorithm.advantage, []
    for turns, values_K in zip(rollouts, values, strict=True):
        trained = [turn for turn in turns if turn.trained]
        if spec.kind == "turn_gae":
            rewards: list[float] = []
            for turn in turns:  # what context earned, the trained turn before it earned
                if turn.trained:
                    rewards.append(turn.reward)
                elif rewards:
                    rewards[-1] += turn.reward
            first = [value_L[0] for value_L in values_K]
            each = paper_gae(rewards, first, spec.gamma, spec.lam)
            advantages = [[one] * len(turn.ids) for one, turn in zip(each, trained, strict=True)]
            goals = [
                (k, 0, one + value, len(turn.ids))
                for k, (one, value, turn) in enumerate(zip(each, first, trained, strict=True))
            ]
        else:
            flat = [value for value_L in values_K for value in value_L]
            rewards = [0.0] * (len(flat) - 1) + [math.fsum(turn.reward for turn in turns)]
            rest = iter(paper_gae(rewards, flat, spec.gamma, spec.lam))
            advantages = [[next(rest) for _ in turn.ids] for turn in trained]
            goals = [
                (k, at, advantages[k][at] + value, 1)
                for k, value_L in enumerate(values_K)
                for at, value in enumerate(value_L)
            ]
        found.append((advantages, goals))
    return found


def by_plain_rows(rollouts: list[list[Turn]], algorithm: Algorithm) -> tuple[Gradients, float, float]:
    """Gradients, the policy's loss and the value model's, written from the papers."""
    actor, value_model = PlainModel(3, 1), PlainModel(5, 2)
    weight_D, bias = torch.zeros(16, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    set_head(weight_D, bias)
    weight_D.requires_grad_(), bias.requires_grad_()
    trained = [[turn for turn in turns if turn.trained] for turns in rollouts]

    def all_values() -> list[list[torch.Tensor]]:
        return [
            [20.0 * (value_model.hidden(one) @ weight_D / 16 + bias) for one in turns] for turns in trained
        ]

    with torch.no_grad():
        old = [[actor.logprobs(turn) for turn in turns] for turns in trained]
        old_values = [[one.tolist() for one in values_K] for values_K in all_values()]
    credits = credit(rollouts, old_values, algorithm)
    if algorithm.advantage.whiten:
        flat = np.array([one for advantages, _ in credits for turn in advantages for one in turn])
        mean, scale = flat.mean(), 1 / math.sqrt(flat.var(ddof=1) + 1e-8)
        credits = [
            ([[(a - mean) * scale for a in turn] for turn in turns], goals) for turns, goals in credits
        ]
    own = {f"value.{name}": one for name, one in value_model.trained.items()}
    every = {**actor.trained, **own, "weight": weight_D, "bias": bias}
    nudge(every)
    count = sum(len(turn.ids) for turns in trained for turn in turns)
    policy_loss = value_loss = torch.zeros((), dtype=torch.float64)
    values = all_values()
    for number, turns in enumerate(trained):
        advantages, goals = credits[number]
        for turn, before, advantage in zip(turns, old[number], advantages, strict=True):
            ratio, gain = (actor.logprobs(turn) - before).exp(), torch.tensor(advantage, dtype=torch.float64)
            policy_loss = (
                policy_loss - torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).sum() / count
            )
        for k, at, goal, tokens in goals:
            value, then = values[number][k][at], old_values[number][k][at]
            held = then + (value - then).clamp(-0.2, 0.2)
            error = torch.maximum((value - goal) ** 2, (held - goal) ** 2)
            value_loss = value_loss + tokens * error / 2 / count
    (policy_loss + value_loss).backward()
    gradients = {name: one.grad for name, one in every.items() if one.grad is not None}
    return gradients, policy_loss.item(), value_loss.item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("ppo_value", {"gamma": 0.97, "lam": 0.9}),
        ("ppo_value", {"whiten": False}),
        ("turn_gae", {}),
        ("turn_gae", {"gamma": 0.9, "lam": 0.6, "whiten": True}),
    ],
)
def test_both_gradients_are_those_of_plain_rows(name: str, numbers: dict[str, Any], seed: int) -> None:
    algorithm = resolve(name, critic=OWN, advantage=numbers)
    rollouts = make_turns(seed)
    expected, policy_loss, value_loss = by_plain_rows(rollouts, algorithm)
    batch = batch_of(rollouts, algorithm)
    for budget in (9999, 40):
        found, shares = by_the_trainer(batch, algorithm, budget)
        assert shares["loss/train"] == pytest.approx(policy_loss, rel=1e-10, abs=1e-12)
        assert shares["loss/value"] == pytest.approx(value_loss, rel=1e-10)
        assert found.keys() == expected.keys() and len(found) == 2 * 28 + 2
        for key, gradient in expected.items():
            assert gradient.norm() > 0 and (found[key] - gradient).norm() <= 1e-10 * gradient.norm(), key


def train(
    made: Trainer, algorithm: Algorithm, steps: range, alter: Callable[[Batch], Batch] = lambda batch: batch
) -> list[dict[str, float]]:
    found = []
    for step in steps:
        batch = alter(games(step, algorithm=algorithm, untrained=0.2))
        metrics = made.train(batch.tree, batch.entries, request_of(batch, algorithm, step))
        found.append({key: one for key, one in metrics.items() if not key.startswith(("time/", "memory/"))})
    return found


def open_trainer(lora: LoraSpec = LORA, **options: Any) -> Trainer:
    made = Trainer(policy(), token_budget=64)
    made.open(MODEL, lora, **options)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo_value", "turn_gae"])
def test_it_resumes_to_the_same_bytes_also_within_its_warm_up(tmp_path: Path, name: str) -> None:
    algorithm = resolve(name, critic={**OWN, "warmup_steps": 3}, updates={"minibatches": 2, "epochs": 2})
    lora = LoraSpec(r=3, alpha=6, dropout=0.25)
    straight = open_trainer(lora)
    train(straight, algorithm, range(2))
    straight.save(MODEL, tmp_path / "0002")
    expected = train(straight, algorithm, range(2, 5))
    straight.save(MODEL, tmp_path / "straight")
    # The moments of the step 2 are another's, and so is the open model.
    again = open_trainer(lora, seed=7)
    train(again, algorithm, range(1))
    assert again.open(MODEL, lora, seed=7, checkpoint=tmp_path / "0002") == 2
    assert train(again, algorithm, range(2, 5)) == expected
    assert again.digest(MODEL) == straight.digest(MODEL)
    again.save(MODEL, tmp_path / "resumed")
    for file in (tmp_path / "straight").iterdir():
        assert file.read_bytes() == (tmp_path / "resumed" / file.name).read_bytes(), file.name


@pytest.mark.slow
def test_in_its_warm_up_it_learns_alone() -> None:
    made = open_trainer()
    train(made, resolve("grpo"), range(2))  # counts from the step in which it is made
    algorithm = resolve("ppo_value", critic={**OWN, "warmup_steps": 2})
    model = made._open[MODEL]
    for step in range(2, 6):
        before = {name: one.detach().clone() for name, one in model.parameters.items()}
        values = None if model.critic is None else model.critic.state()
        (metrics,) = train(made, algorithm, range(step, step + 1))
        assert made.steps[MODEL] == step + 1 and metrics["data/step_num_gradient_steps"] == 4
        still = all(torch.equal(one, before[name]) for name, one in model.parameters.items())
        assert still == (step < 4) and (metrics["loss/grad_norm"] == 0) == (step < 4)
        assert model.critic is not None and metrics["loss/critic_grad_norm"] > 0
        if values is not None:
            after = model.critic.state()
            assert all(not torch.equal(after[key], values[key]) for key in after if "lora_" in key)


@pytest.mark.slow
def test_it_explains_what_a_probe_of_the_policy_cannot() -> None:
    """Rewards are at random per rollout, so its own features must tell the rollouts apart."""
    explained = {}
    for kind in ("adapter", "probe"):
        critic = {"kind": kind, "learning_rate": 1e-2, "clip": None, "max_grad_norm": 10.0}
        algorithm = resolve("ppo_value", critic=critic)
        made = open_trainer()
        batch = games(1, algorithm=algorithm)
        for step in range(25):
            asked = request_of(batch, algorithm, step, rate=0.0)
            metrics = made.train(batch.tree, batch.entries, asked)
        explained[kind] = metrics["loss/explained_variance"]
    assert explained["adapter"] > 0.5 > 0.3 > explained["probe"], explained


@pytest.mark.slow
def test_a_step_that_fails_leaves_everything_as_it_was() -> None:
    made, algorithm = open_trainer(), resolve("turn_gae", critic=OWN)
    train(made, algorithm, range(1))
    before = made.digest(MODEL)

    def spoilt(batch: Batch) -> Batch:
        advantage_E = batch.entries.advantage_E.copy()
        advantage_E[batch.entries.sequence_E == batch.entries.sequence_E[-1]] = np.inf
        return dataclasses.replace(batch, entries=dataclasses.replace(batch.entries, advantage_E=advantage_E))

    with pytest.raises(TrainingError, match=r"not finite|norm"):
        train(made, algorithm, range(1, 2), spoilt)
    assert made.digest(MODEL) == before
    again = open_trainer()
    assert train(made, algorithm, range(1, 3)) == train(again, algorithm, range(3))[1:]


@pytest.mark.slow
def test_another_critic_than_the_checkpoints_is_an_error_that_says_so(tmp_path: Path) -> None:
    made = open_trainer()
    train(made, resolve("ppo_value", critic=OWN), range(1))
    made.save(MODEL, tmp_path / "0001")
    again = open_trainer(checkpoint=tmp_path / "0001")
    before = again.digest(MODEL)
    has = r"has the critic {'kind': 'adapter', 'rank': 5, 'alpha': 10\.0}"
    for other, said in (
        ({**OWN, "rank": 4}, "'rank': 4"),
        ({**OWN, "alpha": 5.0}, r"'alpha': 5\.0"),
        ({"kind": "probe"}, "{'kind': 'probe'}"),
    ):
        with pytest.raises(ConfigurationError, match=rf"{has} since an earlier step.*asks for .*{said}"):
            train(again, resolve("ppo_value", critic=other), range(1, 2))
    assert again.digest(MODEL) == before
    train(again, resolve("turn_gae", critic={**OWN, "learning_rate": 1e-4, "clip": None}), range(1, 2))
    probed = open_trainer()
    train(probed, resolve("ppo_critic"), range(1))
    with pytest.raises(ConfigurationError, match=r"has the critic {'kind': 'probe'} .*asks for .*'rank': 5"):
        train(probed, resolve("ppo_value", critic=OWN), range(1, 2))


@pytest.mark.slow
def test_what_it_cannot_do_is_refused_by_name() -> None:
    whole, algorithm = Trainer(policy(), token_budget=64), resolve("ppo_value")
    whole.open(MODEL, None)
    with pytest.raises(ConfigurationError, match=r"critic 'adapter'.*all weights.*critic={'kind': 'probe'}"):
        train(whole, algorithm, range(1))
    made, batch = open_trainer(), games(0, algorithm=algorithm)
    for use in ("add", "none"):
        with pytest.raises(ConfigurationError, match="critic 'adapter' learns in whole steps"):
            made.train(batch.tree, batch.entries, request_of(batch, algorithm, gradient=use))
    assert made._open[MODEL].critic is None

    def placeless(batch: Batch) -> Batch:
        return dataclasses.replace(batch, entries=dataclasses.replace(batch.entries, place_E=None))

    with pytest.raises(TokenMismatchError, match="entry_place_E is missing"):
        train(made, resolve("turn_gae"), range(1), placeless)


@pytest.mark.slow
def test_a_closed_model_takes_its_value_model_along() -> None:
    made = open_trainer()
    train(made, resolve("ppo_value", critic=OWN), range(1))
    made.open("project/other", LORA)
    made.close(MODEL)
    names = {name for layer in made._weights._adapters._layers.values() for name in layer.lora_A}
    assert names == {made._open["project/other"].adapter}
    made.open(MODEL, LORA)
    train(made, resolve("grpo"), range(1))


@pytest.mark.slow
def test_the_memory_plan_holds_its_weights_and_the_larger_of_two_passes() -> None:
    made = open_trainer()
    train(made, resolve("ppo_value", critic={**OWN, "rank": 16}), range(1))
    model = made._open[MODEL]
    critic = model.critic
    assert critic is not None and critic.adapter is not None
    made._weights.activate(model.adapter)
    planner = MemoryPlanner(made.policy, token_budget=64)
    alone = planner.plan(model.parameters.values(), longest=30)
    both = planner.plan(model.parameters.values(), longest=30, critic=critic)
    own = measure_footprint(made.policy, list(model.parameters.values()))
    with critic.adapter.computing():
        values = measure_footprint(made.policy, list(critic.adapter.parameters.values()))
    assert values.token > own.token and values.state == STATE * made_of(critic.adapter.parameters)
    moments = 8 * made_of(critic.adapter.parameters)
    assert own.followed_by(values).bytes(64, both.way) - moments == both.needed > alone.needed


def made_of(parameters: Any) -> int:
    return sum(one.numel() for one in parameters.values())
