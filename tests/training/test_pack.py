from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_policies import games, ids_to

from art.batch.batch_types import Batch, LossEntries, SampleRow, TokenTree
from art.batch.build import loss_entries
from art.batch.token_tree import build_tree
from art.training.packing.pack import pack
from art.training.packing.runs import MicroBatch


def contexts(micro: MicroBatch) -> dict[int, list[tuple[int, ...]]]:
    """For each entry: the ids it is predicted from and its own, as the attention mask of the piece says."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for entry, target in zip(micro.entry_E.tolist(), micro.entry_target_E.tolist(), strict=True):
        row = int(micro.predictor_P[micro.target_predictor_N[target]])
        path = [k for k in range(row + 1) if row < micro.end_T[k]]
        assert micro.depth_T[path].tolist() == list(range(len(path)))
        spelled = (*micro.tokens_T[path].tolist(), int(micro.target_id_N[target]))
        found.setdefault(entry, []).append(spelled)
    return found


def expected(tree: TokenTree, entries: LossEntries) -> list[tuple[int, ...]]:
    """For each entry: the ids from the root to it."""
    return [tuple(ids_to(tree, node)) for node in entries.token_E.tolist()]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000), budget=st.integers(1, 80), groups=st.integers(1, 3), turns=st.integers(1, 4)
)
def test_every_entry_is_scored_once_behind_its_whole_context(
    seed: int, budget: int, groups: int, turns: int
) -> None:
    batch = games(seed, groups=groups, turns=turns)
    packing = pack(batch.tree, batch.entries, budget)
    found: dict[int, list[tuple[int, ...]]] = {}
    for micro in packing.micro_batches:
        for entry, spelled in contexts(micro).items():
            found.setdefault(entry, []).extend(spelled)
        assert len(micro.tokens_T) <= packing.budget
        assert np.all(np.diff(micro.target_predictor_N) >= 0) and np.all(np.diff(micro.predictor_P) > 0)
    assert [found[entry] for entry in range(len(batch.entries))] == [
        [spelled] for spelled in expected(batch.tree, batch.entries)
    ]
    own = sum(len(micro.tokens_T) - micro.repeated for micro in packing.micro_batches)
    assert own == packing.lower_bound <= packing.forwarded
    assert packing.fill == packing.forwarded / (packing.budget * len(packing.micro_batches)) <= 1


Rollouts = list[list[tuple[list[int], int]]]
ROLLOUTS = st.lists(  # rollouts of samples; a sample is its ids and the length of its prompt
    st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=2, max_size=12), st.integers(1, 11)).map(
            lambda one: (one[0], min(one[1], len(one[0]) - 1))
        ),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=7,
)


def batch_of(rollouts: Rollouts) -> tuple[TokenTree, LossEntries]:
    samples = [(number, *sample) for number, rollout in enumerate(rollouts) for sample in rollout]
    tree, paths = build_tree([np.array(ids) for _, ids, _ in samples])
    rows = [
        SampleRow(
            sample_id=str(at),
            prompt_ids=ids[:prompt],
            completion_ids=ids[prompt:],
            completion_logprobs=[-1.0] * (len(ids) - prompt),
        )
        for at, (_, ids, prompt) in enumerate(samples)
    ]
    owners = [number for number, _, _ in samples]
    return tree, loss_entries(rows, paths, [1.0] * len(rows), sequences=owners)


def on_one_path(tree: TokenTree, nodes: list[int]) -> bool:
    return all(tree.end_T[node] > max(nodes) for node in nodes)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(rollouts=ROLLOUTS, budget=st.integers(1, 60), whole=st.booleans())
def test_any_histories_are_scored_once_and_sequences_on_one_path_together(
    rollouts: Rollouts, budget: int, whole: bool
) -> None:
    tree, entries = batch_of(rollouts)
    packing = pack(tree, entries, budget, whole_sequences=whole)
    found: dict[int, list[tuple[int, ...]]] = {}
    places: dict[int, set[int]] = {}
    for number, micro in enumerate(packing.micro_batches):
        assert len(micro.tokens_T) <= packing.budget
        for entry, spelled in contexts(micro).items():
            found.setdefault(entry, []).extend(spelled)
            places.setdefault(int(entries.sequence_E[entry]), set()).add(number)
    assert [found[entry] for entry in range(len(entries))] == [[one] for one in expected(tree, entries)]
    assert packing.lower_bound <= packing.forwarded
    assert packing.cut_sequences == sum(len(numbers) > 1 for numbers in places.values())
    for sequence, numbers in places.items():
        # Its predictors, not its last token, decide: siblings that end two of its paths have one parent.
        nodes = tree.parent_T[entries.token_E[entries.sequence_E == sequence]].tolist()
        assert not whole or not on_one_path(tree, nodes) or len(numbers) == 1


def test_the_same_batch_is_packed_the_same_way() -> None:
    batch = games(2, groups=6, size=6, turns=4)
    one, other = (pack(batch.tree, batch.entries, 100) for _ in range(2))
    for first, second in zip(one.micro_batches, other.micro_batches, strict=True):
        assert np.array_equal(first.tokens_T, second.tokens_T)
        assert np.array_equal(first.entry_E, second.entry_E)


def rollouts_of(prompts: int, attempts: int, prompt: int, answer: int) -> tuple[TokenTree, LossEntries]:
    """Single-turn groups of equal sizes: every id differs, but the prompts of a group."""
    ids = iter(range(1_000_000))
    groups = [[next(ids) for _ in range(prompt)] for _ in range(prompts)]
    return batch_of(
        [[(group + [next(ids) for _ in range(answer)], prompt)] for group in groups for _ in range(attempts)]
    )


def test_whole_trees_fill_a_micro_batch_before_any_is_cut() -> None:
    tree, entries = rollouts_of(prompts=12, attempts=4, prompt=10, answer=11)  # 50 tokens a tree, 12 trees
    packing = pack(tree, entries, 150)
    assert [len(micro.tokens_T) for micro in packing.micro_batches] == [150] * 4
    assert packing.forwarded == packing.lower_bound and packing.fill == 1


def test_a_tree_that_does_not_fit_is_cut_behind_its_prompt() -> None:
    tree, entries = rollouts_of(prompts=1, attempts=9, prompt=10, answer=11)  # 100 tokens
    packing = pack(tree, entries, 40)
    assert [len(micro.tokens_T) for micro in packing.micro_batches] == [40, 40, 40]
    assert [micro.repeated for micro in packing.micro_batches] == [0, 10, 10]


def test_a_sequence_that_branches_is_kept_together_where_there_is_room() -> None:
    ids = iter(range(1_000_000))
    prompt = [next(ids) for _ in range(10)]
    forks = [[(prompt + [next(ids) for _ in range(11)], 10) for _ in range(2)] for _ in range(6)]
    # Interleaved, so that the first answers of all rollouts come before the second ones.
    tree, entries = batch_of([[rollout[turn]] for turn in range(2) for rollout in forks])
    entries = dataclasses.replace(entries, sequence_E=entries.sequence_E % 6)
    assert pack(tree, entries, 50, whole_sequences=True).cut_sequences == 0
    assert pack(tree, entries, 50).cut_sequences > 0


def two_completions() -> tuple[TokenTree, LossEntries]:
    tree, paths = build_tree([np.array([5, 6, 7, 8]), np.array([5, 6, 7, 9])])
    rows = [
        SampleRow(
            sample_id=name, prompt_ids=[5, 6], completion_ids=[7, last], completion_logprobs=[-0.5, -1.0]
        )
        for name, last in (("a", 8), ("b", 9))
    ]
    return tree, loss_entries(rows, paths, [1.0, -1.0], sequences=[0, 1])


def test_the_worked_example() -> None:
    packing = pack(*two_completions(), 100)
    (micro,) = packing.micro_batches
    assert micro.tokens_T.tolist() == [5, 6, 7]
    assert micro.depth_T.tolist() == [0, 1, 2]
    assert micro.end_T.tolist() == [3, 3, 3]
    assert micro.predictor_P.tolist() == [1, 2]
    assert micro.target_predictor_N.tolist() == [0, 1, 1]
    assert micro.target_id_N.tolist() == [7, 8, 9]
    assert micro.entry_target_E.tolist() == [0, 1, 0, 2]
    assert (packing.lower_bound, packing.forwarded, packing.pairs_needed) == (3, 3, 6)


def test_untrained_tails_are_not_forwarded() -> None:
    # The second row ends in an observation that nothing is sampled after.
    tree, paths = build_tree([np.array([1, 2, 3]), np.array([1, 2, 3, 4, 5, 6])])
    rows = [SampleRow(sample_id="a", prompt_ids=[1], completion_ids=[2, 3], completion_logprobs=[-1.0, -1.0])]
    packing = pack(tree, loss_entries(rows, paths[:1], [1.0], sequences=[0]), 100)
    assert packing.micro_batches[0].tokens_T.tolist() == [1, 2]


def test_a_path_longer_than_the_budget_is_forwarded_whole() -> None:
    tree, entries = two_completions()
    packing = pack(tree, entries, 1)
    assert packing.budget == 3
    assert [len(micro.tokens_T) for micro in packing.micro_batches] == [3]


def test_nothing_to_train_is_an_empty_plan() -> None:
    tree, _ = two_completions()
    nothing = LossEntries(
        token_E=np.zeros(0, np.int32),
        logprob_E=np.zeros(0, np.float32),
        advantage_E=np.zeros(0, np.float32),
        weight_E=np.zeros(0, np.float32),
        sequence_E=np.zeros(0, np.int32),
        sampling_E=np.zeros(0, np.int32),
    )
    assert pack(tree, nothing, 10).micro_batches == ()


@pytest.fixture(scope="module")
def tournament() -> Batch:
    return games(1, groups=16, size=16, turns=5, vocabulary=400)


@pytest.mark.parametrize("budget", [2048, 4096, 8192])
def test_real_budgets_stay_within_two_percent_of_the_lower_bound(tournament: Batch, budget: int) -> None:
    packing = pack(tournament.tree, tournament.entries, budget)
    assert packing.lower_bound > 2048, "the test needs more than one micro-batch"
    assert packing.forwarded <= 1.02 * packing.lower_bound
