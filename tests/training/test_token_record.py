"""The record of each loss entry, and how far trainer and sampler agree, against plain rows and numpy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from tiny_policies import MODEL, causal_lm, games, ids_to, policy, qwen3, randomize

from art.batch.batch_types import Batch
from art.errors import NotFoundError
from art.training.packing.plain_rows import pack_rows
from art.training.packing.runs import MicroBatch
from art.training.step import BatchStep
from art.training.tally import Tally, TokenColumns, sampler_agreement
from art.training.trainer import Trainer
from art.wire.algorithm import Algorithm, KlSpec, LossSpec, MismatchSpec, UpdatesSpec
from art.wire.training import TOKEN_COLUMNS, ComputeSpec, LoraSpec, OptimizerSpec, TrainRequest

LORA = LoraSpec(r=3, alpha=6)
PPO = Algorithm(loss=LossSpec(name="ppo"))
NEW_METRICS = ("loss/logprob_difference_p99", *(f"loss/mismatch_k{n}" for n in (1, 2, 3)), "loss/ess")


def trainer(token_budget: int = 9999) -> Trainer:
    """With an adapter that does something."""
    made = Trainer(policy(qwen3(), dtype=torch.float64), token_budget=token_budget)
    made.open(MODEL, LORA, seed=1)
    randomize(made.parameters(MODEL))
    return made


def ask(batch: Batch, algorithm: Algorithm = PPO, **changes: Any) -> TrainRequest:
    fields = {
        "model": MODEL,
        "step": 0,
        "algorithm": algorithm,
        "optimizer": OptimizerSpec(learning_rate=0.05),
        "normalizer": batch.normalizer,
    }
    return TrainRequest(**{**fields, **changes})


def trained(
    batch: Batch, algorithm: Algorithm = PPO, budget: int = 9999
) -> tuple[dict[str, float], TokenColumns]:
    made = trainer(budget)
    metrics = made.train(batch.tree, batch.entries, ask(batch, algorithm))
    return metrics, made.token_columns(MODEL, 0)


def plain_rows(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Logprob and entropy of each entry: a row for its whole context, stock attention, PEFT's own forward."""
    model = get_peft_model(
        causal_lm(qwen3(), "sdpa", torch.float64),
        LoraConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules=LORA.targets, task_type="CAUSAL_LM"),
    ).eval()
    randomize({name.replace(".default.", "."): p for name, p in model.named_parameters() if "lora_" in name})
    rows = []
    for node in batch.entries.token_E.tolist():
        ids = torch.tensor(ids_to(batch.tree, node))
        with torch.no_grad():
            spread = torch.log_softmax(model(input_ids=ids[None, :-1]).logits[0, -1], -1)
        rows.append((float(spread[ids[-1]]), float(-(spread.exp() * spread).sum())))
    logprob_E, entropy_E = np.array(rows).T
    return logprob_E, entropy_E


def near(batch: Batch, spread: float = 0.3, seed: int = 0) -> Batch:
    """The same batch as a sampler gives it that nearly agrees with the trainer."""
    noise_E = np.random.default_rng(seed).normal(0, spread, len(batch.entries))
    logprob_E = np.minimum(0, plain_rows(batch)[0] + noise_E).astype(np.float32)
    return dataclasses.replace(batch, entries=dataclasses.replace(batch.entries, logprob_E=logprob_E))


def by_hand(logprob_E: np.ndarray, sampled_E: np.ndarray) -> dict[str, float]:
    """The figures by their definitions, in plain Python."""
    pairs = zip(logprob_E.tolist(), sampled_E.tolist(), strict=True)
    logs = [ours - theirs for ours, theirs in pairs]
    weights = [np.exp(log) for log in logs]
    ranked = sorted(abs(log) for log in logs)
    at = 0.99 * (len(ranked) - 1)
    low, high = ranked[int(at)], ranked[min(int(at) + 1, len(ranked) - 1)]
    return {
        "loss/logprob_difference_mean": sum(ranked) / len(ranked),
        "loss/logprob_difference_p99": low + (high - low) * (at - int(at)),
        "loss/logprob_difference_max": ranked[-1],
        "loss/mismatch_k1": -sum(logs) / len(logs),
        "loss/mismatch_k2": sum(log * log for log in logs) / 2 / len(logs),
        "loss/mismatch_k3": sum(w - 1 - log for w, log in zip(weights, logs, strict=True)) / len(logs),
        "loss/ess": sum(weights) ** 2 / sum(w * w for w in weights) / len(weights),
    }


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "in_rows"), [(9999, False), (40, False), (60, True)])
def test_it_equals_plain_rows_through_a_stock_model(
    budget: int, in_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed into trees, cut, and packed into rows that share nothing."""
    if in_rows:
        monkeypatch.setattr("art.training.policy.pack", pack_rows)
    batch = near(games(3, groups=2, size=3))
    mask = MismatchSpec(kind="token_mask", low=0.8, high=1.3)
    metrics, found = trained(batch, PPO.model_copy(update={"mismatch": [mask]}), budget)
    assert {name: column.dtype.name for name, column in found.items()} == dict(TOKEN_COLUMNS)
    logprob_E, entropy_E = plain_rows(batch)
    ratio_E = np.exp(logprob_E - batch.entries.logprob_E)
    advantage_E = batch.entries.advantage_E
    np.testing.assert_allclose(found["logprob"], logprob_E, atol=1e-5)
    np.testing.assert_allclose(found["entropy"], entropy_E, rtol=1e-3)  # in two bytes
    np.testing.assert_allclose(found["ratio"], ratio_E, atol=1e-5)
    np.testing.assert_array_equal(found["advantage"], advantage_E)
    np.testing.assert_array_equal(found["masked"], (ratio_E < 0.8) | (ratio_E > 1.3))
    over_E = ((advantage_E > 0) & (ratio_E > 1.2)) | ((advantage_E < 0) & (ratio_E < 0.8))
    np.testing.assert_array_equal(found["clipped"], over_E)
    assert 0 < over_E.mean() < 1 and 0 < found["masked"].mean() < 1
    assert metrics["loss/mismatch_dropped"] == pytest.approx(found["masked"].mean())
    expected = by_hand(logprob_E, batch.entries.logprob_E.astype(np.float64))
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@settings(max_examples=8)
@given(st.integers(0, 50), st.integers(20, 120), st.integers(0, 3))
def test_no_cut_changes_the_record_or_the_agreement(seed: int, budget: int, unsampled: int) -> None:
    """Every fourth entry has no logprob of a sampler in some batches: it is not compared."""
    batch = games(seed, groups=2, size=3)
    if unsampled:
        given_E = np.arange(len(batch.entries)) % 4 < unsampled
        logprob_E = np.where(given_E, np.float32("nan"), batch.entries.logprob_E)
        batch = dataclasses.replace(batch, entries=dataclasses.replace(batch.entries, logprob_E=logprob_E))
    (one, whole), (many, cut) = trained(batch), trained(batch, budget=budget)
    for name in TOKEN_COLUMNS:
        np.testing.assert_allclose(cut[name], whole[name], rtol=1e-5, atol=1e-6, err_msg=name)
    for name in NEW_METRICS:
        assert many[name] == pytest.approx(one[name], rel=1e-9), name
    sampled_E = batch.entries.logprob_E.astype(np.float64)
    known_E = ~np.isnan(sampled_E)
    expected = by_hand(whole["logprob"][known_E].astype(np.float64), sampled_E[known_E])
    assert {name: one[name] for name in expected} == pytest.approx(expected, rel=1e-4)


@given(st.lists(st.tuples(st.floats(-30, 0), st.floats(-30, 0)), min_size=1, max_size=40))
def test_the_agreement_is_bounded_whatever_the_logprobs(pairs: list[tuple[float, float]]) -> None:
    found = sampler_agreement(*np.array(pairs).T)
    assert 1 / len(pairs) - 1e-12 <= found["loss/ess"] <= 1 + 1e-12 and found["loss/mismatch_k3"] >= 0
    assert found["loss/logprob_difference_p99"] <= found["loss/logprob_difference_max"] <= 30


def test_equal_logprobs_agree_fully() -> None:
    found = sampler_agreement(np.full(5, -1.5), np.full(5, -1.5))
    assert found.pop("loss/ess") == 1 and set(found.values()) == {0.0}


@pytest.mark.slow
def test_of_several_updates_the_first_one_of_each_entry_is_recorded() -> None:
    """Two minibatches, three epochs: the first minibatch is under the weights before the step, and later
    epochs change nothing. Only the first update is compared with the sampler."""
    batch = near(games(5, groups=2, size=4))
    several = PPO.model_copy(update={"updates": UpdatesSpec(minibatches=2, epochs=3)})
    metrics, found = trained(batch, several)
    before_E = plain_rows(batch)[0]
    first_E = np.abs(found["logprob"] - before_E) < 1e-5
    sequences = batch.entries.sequence_E
    assert {bool(first_E[sequences == one].all()) for one in set(sequences.tolist())} == {True, False}
    assert np.isfinite(found["logprob"]).all() and np.isfinite(found["entropy"]).all()
    expected = by_hand(before_E[first_E], batch.entries.logprob_E[first_E].astype(np.float64))
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    once, _ = trained(batch, PPO.model_copy(update={"updates": UpdatesSpec(minibatches=2)}))
    assert {name: once[name] for name in NEW_METRICS} == {name: metrics[name] for name in NEW_METRICS}
    assert metrics["loss/ratio_max"] > once["loss/ratio_max"]


@pytest.mark.slow
def test_ratios_of_sequences_are_those_of_whole_sequences_where_they_are_cut() -> None:
    batch = near(games(7, groups=2, size=3, turns=6))
    gspo = PPO.model_copy(update={"ratio": "sequence"})
    one, whole = trained(batch, gspo)
    many, cut = trained(batch, gspo, budget=int(batch.tree.depth_T.max()) + 1)
    assert many["data/micro_batches"] > one["data/micro_batches"]
    token_E = whole["logprob"].astype(np.float64) - batch.entries.logprob_E
    for name in ("ratio", "clipped"):
        np.testing.assert_allclose(cut[name], whole[name], rtol=1e-5, err_msg=name)
    for sequence in set(batch.entries.sequence_E.tolist()):
        rows = batch.entries.sequence_E == sequence
        np.testing.assert_allclose(whole["ratio"][rows], np.exp(token_E[rows].mean()), rtol=1e-5)
    for name in ("loss/ratio_mean", "loss/ratio_max"):
        assert many[name] == pytest.approx(one[name], rel=1e-9), name


@pytest.mark.slow
def test_advantages_are_the_final_ones() -> None:
    batch = near(games(8, groups=2, size=3))
    kl = KlSpec(estimator="k1", coefficient=0.5, place="advantage", reference="sampler")
    _, found = trained(batch, PPO.model_copy(update={"kl": kl}))
    kl_E = plain_rows(batch)[0] - batch.entries.logprob_E
    np.testing.assert_allclose(found["advantage"], batch.entries.advantage_E - 0.5 * kl_E, atol=1e-5)


@pytest.mark.slow
def test_a_pass_that_is_tried_again_overwrites_what_it_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory ends in the second micro-batch, after a wrong first one was recorded."""
    batch = near(games(4))
    longest = int(batch.tree.depth_T.max()) + 1
    expected, plain = trained(batch, budget=longest)
    calls: list[int] = []
    loss, add = BatchStep.loss, Tally.add

    def ending(step: BatchStep, micro: MicroBatch, tally: Tally) -> torch.Tensor:
        calls.append(len(micro.entry_E))
        if len(calls) == 2:
            raise MemoryError
        return loss(step, micro, tally)

    def wrong(tally: Tally, micro: MicroBatch, entropies_E: torch.Tensor, *, pairs: int) -> None:
        add(tally, micro, entropies_E * (-1 if len(calls) == 1 else 1), pairs=pairs)

    monkeypatch.setattr(BatchStep, "loss", ending)
    monkeypatch.setattr(Tally, "add", wrong)
    metrics, found = trained(batch, budget=2 * longest)
    assert len(calls) > 3
    for name in TOKEN_COLUMNS:
        np.testing.assert_allclose(found[name], plain[name], rtol=1e-6, err_msg=name)
    for name in NEW_METRICS:
        assert metrics[name] == pytest.approx(expected[name], rel=1e-9), name


def test_it_is_kept_until_the_next_batch_and_only_where_it_was_asked_for() -> None:
    made, batch = trainer(), games(2)
    made.train(batch.tree, batch.entries, ask(batch))
    assert len(made.token_columns(MODEL, 0)["logprob"]) == len(batch.entries)
    with pytest.raises(NotFoundError, match="started from step 1"):
        made.token_columns(MODEL, 1)
    for changes in ({"compute": ComputeSpec(record_tokens="none")}, {"kind": "sft"}):
        metrics = made.train(batch.tree, batch.entries, ask(batch, step=made.steps[MODEL], **changes))
        assert set(NEW_METRICS) <= set(metrics)
        for step in (0, 1, 2):
            with pytest.raises(NotFoundError, match="no record of tokens"):
                made.token_columns(MODEL, step)
