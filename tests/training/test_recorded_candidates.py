"""What a truncating sampler could draw is what the trainer renormalises over, also when its policy moved."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_sampler_agrees import MODEL as AGREEING
from test_sampler_agrees import sampled
from tiny_policies import MODEL, SHAPE, VOCABULARY, causal_lm, ids_to, policy, qwen3, randomize
from transformers import Qwen3Config, Qwen3ForCausalLM

from art.batch.batch_types import Batch, CandidateSets, GroupRow, LossEntries, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.batch.encode import check_candidates, decode_batch, encode_batch
from art.errors import TokenMismatchError
from art.training.distributions import Distributions
from art.training.minibatches import take_entries
from art.training.policy import load_policy
from art.training.trainer import Trainer
from art.wire.algorithm import AdvantageSpec, Algorithm
from art.wire.samples import candidates_record, split_candidates
from art.wire.training import LoraSpec, OptimizerSpec, SamplingSpec, TrainRequest

NUCLEUS = SamplingSpec(temperature=0.75, top_p=0.5)
BIASED = SamplingSpec(temperature=1.25, top_k=4, logit_bias=((3, 2.0), (9, -1.0)))
PLAIN = SamplingSpec()
REWARD = Algorithm(advantage=AdvantageSpec(kind="reward"))


def turns(seed: int = 0) -> Batch:
    """Rollouts of two turns behind shared prompts; sets of their own, of which no policy knows anything."""
    rng = np.random.default_rng(seed)

    def ids(count: int) -> list[int]:
        return [int(value) for value in rng.integers(0, VOCABULARY, count)]

    groups = []
    for group in range(2):
        prompt, rollouts = ids(6), []
        for number in range(3):
            samples, context = [], list(prompt)
            for turn in range(2):
                completion = ids(int(rng.integers(2, 5)))
                spec = (NUCLEUS, BIASED, PLAIN)[(number + turn) % 3]
                sets = [sorted({token, *ids(int(rng.integers(0, 6)))}) for token in completion]
                if number == 2:
                    sets[0] = []  # too many to be recorded
                told = (
                    b"" if spec == PLAIN or group == number == 1 else b"".join(map(candidates_record, sets))
                )
                samples.append(
                    SampleRow(
                        sample_id=f"{group}.{number}.{turn}",
                        prompt_ids=list(context),
                        completion_ids=completion,
                        completion_logprobs=(-3 * rng.random(len(completion))).tolist(),
                        sampling=spec,
                        candidates=told,
                    )
                )
                context += completion + ids(2)
            rollouts.append(
                RolloutRow(rollout=f"{group}.{number}", reward=float(number % 2), samples=samples)
            )
        groups.append(GroupRow(rollouts=rollouts))
    return build_batch(groups)


def sets_of(entries: LossEntries) -> list[list[int] | None]:
    assert entries.candidates_E is not None and entries.candidates is not None
    sets = np.split(entries.candidates.id_J, entries.candidates.end_K[:-1])
    return [None if number < 0 else sets[number].tolist() for number in entries.candidates_E.tolist()]


def in_plain_rows(model: Any, batch: Batch) -> torch.Tensor:
    """Each entry's whole context through the stock model, and its distribution written out."""
    entries, found = batch.entries, []
    for node, number, ids in zip(
        entries.token_E.tolist(), entries.sampling_E.tolist(), sets_of(entries), strict=True
    ):
        spec, context = batch.sampling[number], torch.tensor(ids_to(batch.tree, node))
        token = int(context[-1])
        scores = model(input_ids=context[None, :-1]).logits[0, -1]
        for biased, bias in spec.logit_bias:
            scores = scores + torch.nn.functional.one_hot(torch.tensor(biased), VOCABULARY) * bias
        scores = scores / spec.temperature
        if ids is None:
            ids = sorted({*computed(scores, spec), token})
        found.append(scores[ids].log_softmax(0)[ids.index(token)])
    return torch.stack(found)


def computed(scores: torch.Tensor, spec: SamplingSpec) -> list[int]:
    """What top_k and top_p leave of them."""
    order = scores.argsort(descending=True).tolist()[: spec.top_k or None]
    probabilities = scores[order].softmax(0).tolist()
    return [token for at, token in enumerate(order) if sum(probabilities[:at]) < spec.top_p]


def drawn_of(batch: Batch) -> Distributions:
    entries = batch.entries
    return Distributions(
        specs=batch.sampling,
        sampling_E=entries.sampling_E,
        candidates_E=entries.candidates_E,
        candidates=entries.candidates,
    )


@pytest.mark.slow
@pytest.mark.parametrize("budget", [9999, 30, 12])
def test_logprobs_and_gradient_over_the_recorded_sets_are_those_of_plain_rows(budget: int) -> None:
    batch = turns()
    assert {len(one or ()) for one in sets_of(batch.entries)} > {0, 1, 2, 3}
    weight_E = torch.linspace(-1, 1, len(batch.entries), dtype=torch.float64)
    stock = causal_lm(qwen3(), "sdpa", torch.float64).eval()
    plain_E = in_plain_rows(stock, batch)
    wanted = torch.autograd.grad((plain_E * weight_E).sum(), list(stock.parameters()))
    tiny = policy(dtype=torch.float64)
    for parameter in tiny.causal_lm.parameters():
        parameter.requires_grad_()
    packed_E = torch.empty_like(plain_E)
    for micro in tiny.pack(batch.tree, batch.entries, budget).micro_batches:
        scores, _ = tiny.entry_scores(micro, drawn_of(batch))
        rows_E = torch.as_tensor(micro.entry_E)
        packed_E[rows_E] = scores.logprobs_E.detach()
        (scores.logprobs_E * weight_E[rows_E]).sum().backward()
    assert float((packed_E - plain_E.detach()).abs().max()) < 1e-10
    for parameter, other in zip(tiny.causal_lm.parameters(), wanted, strict=True):
        assert parameter.grad is not None
        assert float((parameter.grad - other).norm()) <= 1e-9 * float(other.norm())


def request_of(batch: Batch, **changes: Any) -> TrainRequest:
    parts = {"model": MODEL, "step": 0, "optimizer": OptimizerSpec(learning_rate=1e-3)}
    return TrainRequest(**parts, normalizer=batch.normalizer, sampling=list(batch.sampling), **changes)


def test_the_sets_survive_the_wire_and_minibatches() -> None:
    batch = turns(1)
    tree, entries, request = decode_batch(encode_batch(batch, request_of(batch)))
    assert sets_of(entries) == sets_of(batch.entries) and None in sets_of(entries)
    assert len({tuple(one) for one in sets_of(entries) if one}) == len(entries.candidates or ())
    rows = np.arange(1, len(entries), 2)
    assert sets_of(take_entries(entries, rows)) == sets_of(entries)[1::2]
    made = Trainer(policy(), token_budget=40)
    made.open(MODEL, LoraSpec(r=2))
    made.check(tree, request, entries)
    assert len(made.train(tree, entries, request)) > 5


@pytest.mark.parametrize(
    "sets",
    [
        CandidateSets(end_K=np.array([2]), id_J=np.array([4, 7])),
        CandidateSets(end_K=np.array([2]), id_J=np.array([6, 5])),
        CandidateSets(end_K=np.array([2]), id_J=np.array([5, 6, 7])),
        CandidateSets(end_K=np.array([2, 2]), id_J=np.array([5, 6])),
        CandidateSets(end_K=np.array([3]), id_J=np.array([5, 6])),
        CandidateSets(end_K=np.array([2]), id_J=np.array([-1, 5])),
        CandidateSets(end_K=np.array([], int), id_J=np.array([], int)),
    ],
    ids=["another id", "order", "more ids", "an empty set", "fewer ids", "no id", "no set"],
)
def test_sets_that_are_none_are_refused(sets: CandidateSets) -> None:
    number_E = np.array([0, -1], np.int32)
    check_candidates(np.array([5, 9]), number_E, CandidateSets(end_K=np.array([2]), id_J=np.array([5, 6])))
    with pytest.raises(TokenMismatchError, match="candidates"):
        check_candidates(np.array([5, 9]), number_E, sets)


def test_a_set_outside_the_vocabulary_is_refused_before_anything_runs() -> None:
    batch = turns(1)
    assert batch.entries.candidates is not None
    sets = batch.entries.candidates
    ids = sets.id_J.copy()
    ids[sets.end_K[0] - 1] = VOCABULARY
    entries = dataclasses.replace(
        batch.entries, candidates=CandidateSets(end_K=sets.end_K, id_J=ids.astype(np.int32))
    )
    made = Trainer(policy(), token_budget=40)
    made.open(MODEL, LoraSpec(r=2))
    with pytest.raises(TokenMismatchError, match="vocabulary"):
        made.train(batch.tree, entries, request_of(batch))


@pytest.mark.parametrize(
    ("candidates", "problem"),
    [
        (candidates_record([7]), "1 sets of candidates for 2"),
        (
            candidates_record([7]) + candidates_record([3, 9]),
            "sampled id 1 is 8, which is not among the 2 candidates",
        ),
        (candidates_record([7]) + candidates_record([8])[:-1], "no record"),
        (candidates_record([7]) + candidates_record([8])[:-4], "no record"),
    ],
)
def test_a_row_whose_token_was_not_drawn_from_its_set_is_refused(candidates: bytes, problem: str) -> None:
    row = SampleRow(
        sample_id="s",
        prompt_ids=[5],
        completion_ids=[7, 8],
        completion_logprobs=[-1.0, -1.0],
        sampling=NUCLEUS,
        candidates=candidates,
    )
    with pytest.raises(TokenMismatchError, match=problem):
        build_batch([GroupRow(rollouts=[RolloutRow(rollout="r", reward=1.0, samples=[row])])])


@pytest.mark.slow
async def test_a_policy_that_has_moved_renormalises_over_what_the_older_sampler_kept(tmp_path: Path) -> None:
    """The sampler is some steps old: under the trainer's policy top_p would leave other ids."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    base = tmp_path / "base"
    Qwen3ForCausalLM(Qwen3Config(**SHAPE, initializer_range=0.3)).save_pretrained(base)
    trainer = Trainer(load_policy(str(base), name="test/tiny"), token_budget=200)
    trainer.open(AGREEING, LoraSpec())
    randomize(trainer.parameters(AGREEING))
    trainer.save(AGREEING, tmp_path / "0001")
    prompts = torch.randint(0, 23, (12, 9), generator=torch.Generator().manual_seed(0)).tolist()
    rows = await sampled(base, tmp_path / "0001", prompts, [SamplingSpec(temperature=0.9, top_p=0.7)])
    for parameter in trainer.parameters(AGREEING).values():  # the policy moves on
        parameter.data.mul_(1.1)
    tokens = outside = 0
    for row in rows:
        sets = split_candidates(row.candidates)
        ids = [*row.prompt_ids, *row.completion_ids]
        with torch.no_grad(), trainer.policy.stock_attention():
            logits = trainer.policy.causal_lm(input_ids=torch.tensor([ids])).logits[0]
        one = build_batch(
            [GroupRow(rollouts=[RolloutRow(rollout="r", reward=1.0, samples=[row])])], algorithm=REWARD
        )
        (micro,) = trainer.policy.pack(one.tree, one.entries, 200).micro_batches
        with torch.no_grad():
            got_E = trainer.policy.entry_scores(micro, drawn_of(one))[0].logprobs_E
        found = torch.empty(len(one.entries))
        found[torch.as_tensor(micro.entry_E)] = got_E
        for at, (token, kept) in enumerate(zip(row.completion_ids, sets, strict=True)):
            scores = logits[len(row.prompt_ids) - 1 + at] / 0.9
            assert token in kept
            want = float(scores[kept.tolist()].log_softmax(0)[kept.tolist().index(token)])
            assert float(found[at]) == pytest.approx(want, abs=1e-4)
            tokens, outside = tokens + 1, outside + (token not in computed(scores, row.sampling))
    assert outside > 0, f"of {tokens} tokens a set that is computed anew would have all: nothing is shown"
