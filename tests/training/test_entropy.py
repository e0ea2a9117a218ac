"""Entropy in the objective: its gradient, the bonus, and the tokens of the highest entropy, against plain
rows of a stock model in float64.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from tiny_policies import MODEL, SHAPE, VOCABULARY, causal_lm, games, ids_to, policy, qwen3, randomize
from transformers import Gemma2Config, GraniteConfig, LlamaConfig, PreTrainedConfig

from art.batch.batch_types import Batch
from art.errors import ConfigurationError
from art.training.first_pass import highest_entropies
from art.training.logprobs import LogitHead, target_logprobs
from art.training.sampling import SamplingRows
from art.training.step import BatchStep
from art.training.tally import Tally, TokenRecord
from art.training.trainer import Trainer
from art.wire.algorithm import AggregationSpec, Algorithm, EntropySpec, LossSpec, UpdatesSpec
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest

LORA = LoraSpec(r=3, alpha=6)
PREDICTOR_N, ID_N = torch.tensor([0, 0, 2, 3, 3, 3, 6]), torch.tensor([1, 2, 3, 4, 5, 5, 6])
Gradients = dict[str, torch.Tensor]


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    got, wanted = got.detach(), wanted.detach()
    assert float(wanted.norm()) > 0
    assert float((got - wanted).norm()) <= 1e-10 * float(wanted.norm())


def head_of(config: PreTrainedConfig, *, trained: bool) -> Any:
    model = causal_lm(config, "eager", torch.float64)
    model.requires_grad_(False)
    if trained:
        model.get_output_embeddings().weight.requires_grad_()
    return model


@pytest.mark.parametrize("tempered", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SHAPE),
        GraniteConfig(**SHAPE, logits_scaling=3.0),
        Gemma2Config(**SHAPE, final_logit_softcapping=5.0, query_pre_attn_scalar=8),
    ],
    ids=["llama", "scaled", "capped"],
)
def test_the_gradient_of_logprobs_and_entropies_is_that_of_autograd(
    config: PreTrainedConfig, trained: bool, rows: int, tempered: bool
) -> None:
    model = head_of(config, trained=trained)
    head = LogitHead(model)
    generator = torch.Generator().manual_seed(1)
    hidden_PD = torch.randn(7, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    slope_N = torch.arange(1.0, 8.0, dtype=torch.float64)
    slope_P = torch.linspace(-1.0, 2.0, 7, dtype=torch.float64)
    temperature_N = torch.tensor([1.0, 0.5, 1.0, 2.0, 1.0, 1.0, 0.7])
    sampling = None
    if tempered:
        none_N = torch.zeros(7)
        sampling = SamplingRows.make(
            temperature_N=temperature_N,
            top_k_N=none_N.long(),
            top_p_N=none_N + 1,
            min_p_N=none_N,
            shapes=None,
            recorded=None,
        )
    logprob_N, entropy_P = target_logprobs(
        head,
        hidden_PD,
        PREDICTOR_N,
        ID_N,
        sampling=sampling,
        entropies=True,
        chunk_elements=rows * SHAPE["vocab_size"],
    )
    inputs = [hidden_PD, *head.trained()]
    got = torch.autograd.grad((logprob_N * slope_N).sum() + (entropy_P * slope_P).sum(), inputs)
    logits_PV = head(hidden_PD)
    log_PV = torch.log_softmax(logits_PV, -1)
    exact_P = -(log_PV.exp() * log_PV).sum(-1)
    divided_N = temperature_N.double() if tempered else torch.ones(7, dtype=torch.float64)
    exact_N = torch.log_softmax(logits_PV[PREDICTOR_N] / divided_N[:, None], -1)[torch.arange(7), ID_N]
    wanted = torch.autograd.grad((exact_N * slope_N).sum() + (exact_P * slope_P).sum(), inputs)
    close(entropy_P, exact_P)
    for one, other in zip(got, wanted, strict=True):
        close(one, other)


def objective(batch: Batch, algorithm: Algorithm, coefficient: float) -> tuple[float, Gradients]:
    """By one row per node, stock attention and PEFT's own forward, and the formulas as papers have them."""
    model = get_peft_model(
        causal_lm(qwen3(), "sdpa", torch.float64),
        LoraConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules=LORA.targets, task_type="CAUSAL_LM"),
    ).eval()
    trained = {name.replace(".default.", "."): p for name, p in model.named_parameters() if "lora_" in name}
    randomize(trained)
    logprobs, entropies = [], []
    for node in batch.entries.token_E.tolist():
        ids = torch.tensor(ids_to(batch.tree, node))
        log_V = torch.log_softmax(model(input_ids=ids[None, :-1]).logits[0, -1], -1)
        logprobs.append(log_V[ids[-1]])
        entropies.append(-sum(one.exp() * one for one in log_V))
    logprob_E, entropy_E = torch.stack(logprobs), torch.stack(entropies)
    ratio_E = (logprob_E - torch.from_numpy(batch.entries.logprob_E)).exp()
    advantage_E, weight_E = (
        torch.from_numpy(one).double() for one in (batch.entries.advantage_E, batch.entries.weight_E)
    )
    term_E = -torch.minimum(ratio_E * advantage_E, ratio_E.clamp(0.8, 1.2) * advantage_E)
    if algorithm.top_entropy is not None:
        highest = by_rank([one.item() for one in entropies], algorithm.top_entropy)
        term_E = term_E * torch.tensor(highest, dtype=torch.float64)
    loss = (weight_E * (term_E - coefficient * entropy_E)).sum() / batch.normalizer
    loss.backward()
    return loss.item(), {name: p.grad for name, p in trained.items() if p.grad is not None}


def by_rank(values: list[float], share: float) -> list[bool]:
    """Values at or above the quantile, by their ranks: `linear` between the two next to it."""
    ordered = sorted(values)
    place = (1 - share) * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    least = ordered[low] + (ordered[high] - ordered[low]) * (place - low)
    return [value >= least - 1e-6 for value in values]


def asked(batch: Batch, algorithm: Algorithm, step: int = 0) -> TrainRequest:
    return TrainRequest(
        model=MODEL,
        step=step,
        algorithm=algorithm,
        optimizer=OptimizerSpec(learning_rate=1e-2),
        normalizer=batch.normalizer,
    )


def tree_gradient(batch: Batch, algorithm: Algorithm, budget: int) -> tuple[dict[str, float], Gradients]:
    """Metrics and gradient of a step's only update, as the trainer computes them."""
    made = Trainer(policy(dtype=torch.float64), token_budget=budget)
    made.open(MODEL, LORA)
    randomize(dict(made.parameters(MODEL)))
    request = asked(batch, algorithm)
    step = BatchStep(made._learner(made._open[MODEL], request), batch.tree, batch.entries, request, budget)
    found = step.prepare()
    everything_E = np.arange(len(batch.entries))
    record = TokenRecord(batch.entries.logprob_E, step.columns.sampled_E, [everything_E], all_columns=False)
    tally = Tally(1, lambda *_: None, record)
    step.gradient(everything_E, tally)
    gradients = {name: p.grad for name, p in made.parameters(MODEL).items() if p.grad is not None}
    tally.updated(0.0)
    return {**tally.metrics(0.0), **found}, gradients


PPO = LossSpec(name="ppo", params={"epsilon": 0.2, "epsilon_high": 0.2})


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    budget=st.integers(1, 120),
    coefficient=st.sampled_from([0.0, 0.05, 0.7]),
    top=st.sampled_from([None, 0.2, 0.55]),
    aggregation=st.sampled_from(["token_mean", "sequence_mean"]),
    context=st.sampled_from([0.0, 0.4]),
)
def test_bonus_and_highest_entropies_of_the_tree_are_those_of_plain_rows(
    seed: int, budget: int, coefficient: float, top: float | None, aggregation: Any, context: float
) -> None:
    algorithm = Algorithm(
        loss=PPO,
        aggregation=AggregationSpec(kind=aggregation),
        entropy=EntropySpec(coefficient=coefficient) if coefficient else None,
        top_entropy=top,
    )
    batch = games(seed, groups=2, size=3, untrained=context, algorithm=algorithm)
    assume(not batch.empty)
    wanted = objective(batch, algorithm, coefficient)
    assume(all(gradient.norm() > 1e-9 for gradient in wanted[1].values()))
    metrics, got = tree_gradient(batch, algorithm, budget)
    assert metrics["loss/train"] == pytest.approx(wanted[0], rel=1e-10, abs=1e-13)
    assert got.keys() == wanted[1].keys() and len(got) == 28
    for name, gradient in wanted[1].items():
        close(got[name], gradient)


@pytest.mark.parametrize("budget", [1, 40])
def test_the_metrics_do_not_depend_on_the_micro_batches(budget: int) -> None:
    """The threshold, the bonus, and the estimates of the divergence from the sampler are of the whole
    step.
    """
    batch = games(3)
    algorithm = Algorithm(loss=PPO, entropy=EntropySpec(coefficient=0.1), top_entropy=0.2)
    (cut, _), (whole, _) = (tree_gradient(batch, algorithm, size) for size in (budget, 9999))
    assert cut["data/micro_batches"] > 1 and whole["data/micro_batches"] == 1
    names = [name for name in whole if name.startswith("loss/")]
    assert {"loss/mismatch_k1", "loss/mismatch_k2", "loss/mismatch_k3"} < {*names}
    assert {"loss/entropy_bonus", "loss/entropy_coefficient", "loss/top_entropy_least"} < {*names}
    for name in names:
        assert cut[name] == pytest.approx(whole[name], rel=1e-10), name


def test_without_a_share_all_tokens_are_kept_and_the_highest_always_is() -> None:
    entropy_E = torch.tensor([0.5, 2.0, 0.5, 1.0, 0.0])
    every_E = torch.ones(5, dtype=torch.bool)
    assert highest_entropies(entropy_E, 0.999, every_E)[0].sum() == 4
    assert highest_entropies(entropy_E, 1e-9, every_E)[0].tolist() == [False, True, False, False, False]
    kept_E, least = highest_entropies(entropy_E, 0.6, every_E)
    assert kept_E.tolist() == [True, True, True, True, False] and least == 0.5  # equal ones stay together
    counted_E = torch.tensor([True, False, True, False, True])
    assert highest_entropies(entropy_E, 0.5, counted_E)[1] == 0.5


@pytest.mark.slow
def test_the_highest_entropies_are_those_before_the_first_update() -> None:
    """Two epochs and minibatches: what each update trains is decided once, for the whole step."""
    batch = games(5)
    updates = UpdatesSpec(minibatches=2, epochs=2)
    thresholds = []
    for budget in (30, 9999):
        made = Trainer(policy(dtype=torch.float64), token_budget=budget)
        made.open(MODEL, LORA)
        metrics = made.train(
            batch.tree, batch.entries, asked(batch, Algorithm(loss=PPO, top_entropy=0.2, updates=updates))
        )
        thresholds.append(metrics["loss/top_entropy_least"])
    first = tree_gradient_at_start(batch)
    assert thresholds == pytest.approx([first, first], rel=1e-12)


def tree_gradient_at_start(batch: Batch) -> float:
    made = Trainer(policy(dtype=torch.float64), token_budget=9999)
    made.open(MODEL, LORA)
    (micro,) = made.policy.pack(batch.tree, batch.entries, 9999).micro_batches
    entropies_E: list[float] = made.policy.entry_scores(micro)[0].entropies_E.tolist()
    ordered = sorted(entropies_E)
    place = 0.8 * (len(ordered) - 1)
    low = int(place)
    return ordered[low] + (ordered[low + 1] - ordered[low]) * (place - low)


def learn(made: Trainer, steps: range, algorithm: Algorithm) -> list[dict[str, float]]:
    found = []
    for step in steps:
        batch = games(step)
        found.append(made.train(batch.tree, batch.entries, asked(batch, algorithm, step)))
    return found


def test_the_coefficient_follows_the_entropy_to_its_target() -> None:
    made = Trainer(policy(), token_budget=64)
    made.open(MODEL, LORA)
    (first,) = learn(made, range(1), Algorithm())
    spec = EntropySpec(coefficient=0.01, target=first["loss/entropy"], step=0.02)
    metrics = learn(made, range(1, 9), Algorithm(entropy=spec))
    coefficient, above, used = 0.01, False, []
    for one in metrics:
        used.append(one["loss/entropy_coefficient"])
        assert used[-1] == (0.0 if above else coefficient)
        above = one["loss/entropy"] > first["loss/entropy"]
        coefficient = max(0.0, coefficient - 0.02 if above else coefficient + 0.02)
    assert len({*used}) > 2


@pytest.mark.parametrize(("target", "rises"), [(1e-6, False), (3.0, True)])
def test_it_rises_below_the_target_and_ends_at_zero_above(target: float, rises: bool) -> None:
    made = Trainer(policy(), token_budget=64)
    made.open(MODEL, LORA)
    algorithm = Algorithm(entropy=EntropySpec(coefficient=0.015, target=target, step=0.01))
    used = [one["loss/entropy_coefficient"] for one in learn(made, range(4), algorithm)]
    assert used == pytest.approx([0.015, 0.025, 0.035, 0.045] if rises else [0.015, 0.0, 0.0, 0.0])
    state = made._open[MODEL].entropy
    assert state is not None and state.coefficient == (pytest.approx(0.055) if rises else 0.0)


def test_a_bonus_keeps_entropy_and_a_batch_without_advantages_trains() -> None:
    batch = games(2)
    entries = dataclasses.replace(batch.entries, advantage_E=np.zeros_like(batch.entries.advantage_E))
    made = Trainer(policy(), token_budget=64)
    made.open(MODEL, LORA)
    algorithm = Algorithm(entropy=EntropySpec(coefficient=1.0))
    entropies = [
        made.train(batch.tree, entries, asked(batch, algorithm, step))["loss/entropy"] for step in range(4)
    ]
    assert entropies == sorted(entropies) and entropies[-1] > entropies[0] + 0.01


@pytest.mark.parametrize("gradient", ["add", "none"])
def test_what_cannot_be_is_refused_by_name(gradient: Any) -> None:
    batch = games(2)
    made = Trainer(policy(), token_budget=64)
    made.open(MODEL, LORA)
    beyond = Algorithm(entropy=EntropySpec(target=float(np.log(VOCABULARY)), step=0.1))
    with pytest.raises(ConfigurationError, match=r"entropy\.target is 3\.13.*23 ids"):
        made.train(batch.tree, batch.entries, asked(batch, beyond))
    adaptive = Algorithm(entropy=EntropySpec(target=1.0, step=0.1))
    request = asked(batch, adaptive).model_copy(update={"gradient": gradient})
    with pytest.raises(ConfigurationError, match=r"entropy\.target follows steps"):
        made.train(batch.tree, batch.entries, request)
    assert made.steps == {MODEL: 0}


def test_gradients_that_are_added_up_have_the_bonus_too() -> None:
    batch, fixed = games(2), Algorithm(entropy=EntropySpec(coefficient=0.3))
    gradients = []
    for algorithm in (fixed, Algorithm()):
        made = Trainer(policy(dtype=torch.float64), token_budget=64)
        made.open(MODEL, LORA)
        randomize(dict(made.parameters(MODEL)))
        request = asked(batch, algorithm).model_copy(update={"gradient": "add"})
        made.train(batch.tree, batch.entries, request)
        gradients.append([p.grad for p in made.parameters(MODEL).values()])
    with_bonus = tree_gradient(batch, fixed, 9999)[1]
    for got, without, wanted in zip(*gradients, with_bonus.values(), strict=True):
        assert got is not None and without is not None
        close(got, wanted)
        assert not torch.allclose(without, wanted)


@pytest.mark.slow
def test_an_adaptive_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    algorithm = Algorithm(
        entropy=EntropySpec(coefficient=0.1, target=1.5, step=0.013),
        top_entropy=0.5,
        loss=PPO,
        updates=UpdatesSpec(minibatches=2),
    )
    lora = LoraSpec(r=3, alpha=6, dropout=0.25)
    straight = Trainer(policy(), token_budget=64)
    straight.open(MODEL, lora)
    learn(straight, range(2), algorithm)
    straight.save(MODEL, tmp_path / "0002")
    expected = learn(straight, range(2, 4), algorithm)
    straight.save(MODEL, tmp_path / "straight")
    again = Trainer(policy(), token_budget=64)
    assert again.open(MODEL, lora, seed=7, checkpoint=tmp_path / "0002") == 2
    got = learn(again, range(2, 4), algorithm)
    again.save(MODEL, tmp_path / "resumed")
    assert '"entropy": {' in (tmp_path / "0002" / "trainer_state.json").read_text()
    for one, other in zip(expected, got, strict=True):
        assert {k: v for k, v in one.items() if k.startswith(("loss/", "data/"))} == {
            k: v for k, v in other.items() if k.startswith(("loss/", "data/"))
        }
    assert straight.digest(MODEL) == again.digest(MODEL)
    for file in (tmp_path / "straight").iterdir():
        assert file.read_bytes() == (tmp_path / "resumed" / file.name).read_bytes(), file.name


@pytest.mark.parametrize("ratio", ["sequence", "average"])
def test_a_bonus_of_cut_sequences_is_that_of_whole_ones(ratio: Any) -> None:
    """The loss of a cut sequence is differentiated before its micro-batches; the bonus is not."""
    batch = games(20, groups=2, size=3, turns=4)
    all_over_E = (np.arange(len(batch.entries)) % 2).astype(np.int32)
    batch = dataclasses.replace(batch, entries=dataclasses.replace(batch.entries, sequence_E=all_over_E))
    packing = policy().pack(batch.tree, batch.entries, 20, whole_sequences=True)
    assert packing.cut_sequences == 2
    algorithm = Algorithm(loss=PPO, ratio=ratio, entropy=EntropySpec(coefficient=0.3))
    (cut, got), (whole, wanted) = (tree_gradient(batch, algorithm, budget) for budget in (20, 9999))
    assert cut["loss/train"] == pytest.approx(whole["loss/train"], rel=1e-10)
    for name, gradient in wanted.items():
        close(got[name], gradient)
