"""Loss and gradient of a tree of pairs equal those of the papers' formulas on plain rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from preference_rows import LORA, Example, PlainModel, batch_of, examples, length
from tiny_policies import MODEL, policy, randomize

from art.batch.batch_types import Batch
from art.training.first_pass import References
from art.training.losses.registry import make_loss
from art.training.minibatches import minibatches
from art.training.step import BatchStep, Learner
from art.training.tally import Tally, TokenRecord
from art.training.trainer import Trainer
from art.wire.algorithm import Algorithm, KlSpec, LossSpec
from art.wire.training import OptimizerSpec, TrainRequest
from art_extensions.preferences.jobs import mismatched_rows
from art_extensions.preferences.losses import preference_algorithm

pytestmark = pytest.mark.slow

Gradients = dict[str, torch.Tensor]
BETA = 0.3
BASE = KlSpec(coefficient=BETA, place="term")
softplus = torch.nn.functional.softplus


def by_the_tree(
    batch: Batch, algorithm: Algorithm, budget: int
) -> tuple[float, dict[str, float], Gradients, int]:
    """Loss, metrics, gradients, and how many sequences were cut."""
    made = Trainer(policy(dtype=torch.float64), token_budget=budget)
    made.open(MODEL, LORA)
    randomize(dict(made.parameters(MODEL)))
    asked = TrainRequest(
        model=MODEL,
        step=0,
        algorithm=algorithm,
        optimizer=OptimizerSpec(learning_rate=1e-3),
        normalizer=batch.normalizer,
    )
    model = made._open[MODEL]
    learner = Learner(
        policy=made.policy,
        optimizer=model.optimizer,
        loss=make_loss(algorithm),
        references=References(made.policy, made._weights, model.adapter),
    )
    made._weights.activate(model.adapter)
    step = BatchStep(learner, batch.tree, batch.entries, asked, budget)
    step.prepare()
    (rows_E,) = minibatches(batch.entries, algorithm.updates)
    record = TokenRecord(batch.entries.logprob_E, step.columns.sampled_E, [rows_E], all_columns=False)
    tally = Tally(1, lambda *_: None, record)
    step.gradient(rows_E, tally)
    tally.updated(1.0)
    gradients = {name: p.grad for name, p in model.parameters.items() if p.grad is not None}
    cut = step._pack(rows_E, budget).cut_sequences
    return tally.loss, tally.metrics(0.0), gradients, cut


def assert_same(loss: float, gradients: Gradients, wanted: float, by_rows: Gradients) -> None:
    assert abs(loss - wanted) <= 1e-10 * abs(wanted)
    assert gradients.keys() == by_rows.keys() and len(by_rows) == 2 * 7 * 2
    for name, gradient in by_rows.items():
        assert gradient.norm() > 0, name
        assert (gradients[name] - gradient).norm() <= 1e-10 * gradient.norm(), name


def dpo_loss(plain: PlainModel, pairs: Sequence[Example], *, smoothing: float, ipo: bool, mean: bool) -> Any:
    losses = []
    for pair in pairs:
        (_, chosen), (_, rejected) = pair.sides
        apart = plain.log_ratio(chosen) / (length(chosen) if mean else 1)
        apart = apart - plain.log_ratio(rejected) / (length(rejected) if mean else 1)
        if ipo:
            losses.append((apart - 1 / (2 * BETA)) ** 2)
        else:
            losses.append((1 - smoothing) * softplus(-BETA * apart) + smoothing * softplus(BETA * apart))
    return torch.stack(losses).mean()


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    budget=st.integers(1, 90),
    smoothing=st.sampled_from([0.0, 0.2]),
    mean=st.booleans(),
)
@pytest.mark.parametrize("ipo", [False, True])
def test_dpo_in_float64_to_ten_digits(
    ipo: bool, seed: int, budget: int, smoothing: float, mean: bool
) -> None:
    pairs, plain = examples(seed, 3), PlainModel()
    params = {"beta": BETA, "label_smoothing": smoothing, "ipo": ipo, "length_normalised": mean}
    algorithm = preference_algorithm("dpo", LossSpec(name="preference", params=params), BASE)
    loss, _, gradients, _ = by_the_tree(batch_of(pairs, algorithm), algorithm, budget)
    wanted = dpo_loss(plain, pairs, smoothing=smoothing, ipo=ipo, mean=mean)
    assert_same(loss, gradients, wanted.item(), plain.gradients(wanted))


def test_a_pair_that_one_pass_cannot_hold_is_cut_and_its_gradient_is_the_same() -> None:
    pairs, algorithm = examples(5, 4), preference_algorithm("dpo", LossSpec(name="preference"), BASE)
    batch = batch_of(pairs, algorithm)
    whole, cut = by_the_tree(batch, algorithm, 999), by_the_tree(batch, algorithm, 20)
    assert whole[3] == 0 and cut[3] > 0
    assert cut[0] == pytest.approx(whole[0], rel=1e-12)
    for name, gradient in whole[2].items():
        assert torch.allclose(cut[2][name], gradient, rtol=1e-9, atol=1e-14), name
    for name in (one for one in whole[1] if one.startswith("objective/")):
        assert cut[1][name] == pytest.approx(whole[1][name], rel=1e-9)


def test_the_metrics_are_those_of_the_pairs() -> None:
    pairs, plain = examples(11, 5), PlainModel()
    algorithm = preference_algorithm("dpo", LossSpec(name="preference", params={"beta": BETA}), BASE)
    _, metrics, _, _ = by_the_tree(batch_of(pairs, algorithm), algorithm, 64)
    with torch.no_grad():
        ratios = [[plain.log_ratio(turns).item() for _, turns in pair.sides] for pair in pairs]
        said = [[plain.logprob(turns).item() for _, turns in pair.sides] for pair in pairs]
    count = len(pairs)
    wanted = {
        "accuracy": sum(chosen > rejected for chosen, rejected in ratios) / count,
        "margin": BETA * sum(chosen - rejected for chosen, rejected in ratios) / count,
        "chosen_reward": BETA * sum(chosen for chosen, _ in ratios) / count,
        "rejected_reward": BETA * sum(rejected for _, rejected in ratios) / count,
        "chosen_logprob": sum(chosen for chosen, _ in said) / count,
        "rejected_logprob": sum(rejected for _, rejected in said) / count,
    }
    assert {name: metrics[f"objective/{name}"] for name in wanted} == pytest.approx(wanted, rel=1e-10)


def test_the_prompt_of_a_pair_is_forwarded_once() -> None:
    algorithm = preference_algorithm("dpo", LossSpec(name="preference"), BASE)
    prompt = list(range(1, 16))
    pair = Example(sides=[(1.0, [(prompt, [1, 2, 3])]), (-1.0, [(prompt, [4, 5])])])
    batch = batch_of([pair], algorithm)
    assert len(batch.tree) == len(prompt) + 3 + 2
    assert by_the_tree(batch, algorithm, 99)[1]["data/forwarded_tokens"] == len(prompt) + 2 + 1


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 90), point=st.sampled_from([0.0, 0.7]))
def test_kto_in_float64_to_ten_digits(seed: int, budget: int, point: float) -> None:
    weights = {1.0: 1.5, -1.0: 0.5}  # of a desirable and of an undesirable reply
    replies = [
        Example(sides=[(sign * weights[sign], turns)])
        for one in examples(seed, 3)
        for sign, turns in one.sides
    ]
    plain, losses = PlainModel(), []
    for reply in replies:
        ((signed, turns),) = reply.sides
        value = torch.sigmoid((1 if signed > 0 else -1) * BETA * (plain.log_ratio(turns) - point))
        losses.append(abs(signed) * (1 - value))
    wanted = torch.stack(losses).mean()
    params = {"beta": BETA, "reference_point": point}
    algorithm = preference_algorithm("kto", LossSpec(name="kto", params=params), BASE)
    loss, metrics, gradients, _ = by_the_tree(batch_of(replies, algorithm), algorithm, budget)
    assert_same(loss, gradients, wanted.item(), plain.gradients(wanted))
    ratios = [plain.log_ratio(reply.sides[0][1]).item() for reply in replies]
    assert metrics["objective/log_ratio"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-10)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), budget=st.integers(1, 90))
def test_the_loss_of_a_reward_model_in_float64_to_ten_digits(seed: int, budget: int) -> None:
    """A score is the difference of two logits behind the conversation."""
    good, bad, plain, losses, asked = 3, 4, PlainModel(), [], []
    for pair in examples(seed, 3):
        sides, scores = [], []
        for sign, turns in pair.sides:
            conversation = turns[-1][0] + turns[-1][1]
            sides += [(sign, [(conversation, [good])]), (-sign, [(conversation, [bad])])]
            logits = plain.model(input_ids=torch.tensor([conversation])).logits[0, -1]
            scores.append(logits[good] - logits[bad])
        asked.append(Example(sides=sides))
        losses.append(softplus(scores[1] - scores[0]))
    wanted = torch.stack(losses).mean()
    algorithm = preference_algorithm("reward_model", LossSpec(name="preference", params={"beta": 1.0}), None)
    loss, _, gradients, _ = by_the_tree(batch_of(asked, algorithm), algorithm, budget)
    assert_same(loss, gradients, wanted.item(), plain.gradients(wanted))


def test_a_mismatched_reply_is_that_of_the_conversation_before() -> None:
    replies = [Example(sides=one.sides[:1]) for one in examples(3, 4)]
    rows = mismatched_rows([one.row(number) for number, one in enumerate(replies)])
    firsts = [one.sides[0][1][0] for one in replies]
    assert [(one.samples[0].prompt_ids, one.samples[0].completion_ids) for one in rows] == [
        (firsts[at][0], firsts[at - 1][1]) for at in range(4)
    ]
    assert all(len(one.samples) == 1 for one in rows)
