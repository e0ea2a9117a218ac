"""The tree and the entries of a call: a worked example in numbers, and what holds for any."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loss_requests import datum, read

from art.batch.algorithms import check_algorithm
from art.batch.algorithms.facts import needs_first_pass, needs_reference, needs_sequences, update_count
from art.batch.batch_types import TokenTree
from art.batch.encode import check_entries, check_tree
from art.batch.token_tree import build_tree
from art_extensions.tinker.batches import LossBatch, loss_batch, per_datum
from art_extensions.tinker.leaves import add_leaves
from art_extensions.tinker.loss_functions import LOSS_FUNCTIONS
from core_speed import CoreSpeed

CONFIG: dict[str, dict[str, float]] = {
    "dro": {"beta": 0.05},
    "gspo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1},
}


def test_a_worked_example() -> None:
    batch = loss_batch(
        read(
            datum(
                [5, 6, 7],
                target_tokens=[6, 9, 8],
                logprobs=[0.0, -1.0, -2.0],
                advantages=[0.0, 1.5, -0.5],
                mask=[0, 1, 1],
            ),
            datum(
                [5, 6],
                target_tokens=[7, 9],
                logprobs=[-0.5, -0.25],
                advantages=[1.0, 2.0],
            ),
            loss_fn="ppo",
        )
    )
    # 5 -> 6 -> 7 -> 8, then 9 after 6 (the end of the second path, and a target of the first), 7 after 5.
    assert batch.tree.tokens_T.tolist() == [5, 6, 7, 8, 9, 7]
    assert batch.tree.parent_T.tolist() == [-1, 0, 1, 2, 1, 0]
    assert batch.tree.end_T.tolist() == [6, 5, 4, 4, 5, 6]
    assert batch.tree.depth_T.tolist() == [0, 1, 2, 3, 2, 1]
    entries = batch.entries
    assert entries.token_E.tolist() == [1, 4, 3, 5, 4]
    assert entries.logprob_E.tolist() == [0.0, -1.0, -2.0, -0.5, -0.25]
    assert entries.advantage_E.tolist() == [0.0, 1.5, -0.5, 1.0, 2.0]
    assert entries.weight_E.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert entries.sequence_E.tolist() == [0, 0, 0, 1, 1]
    assert entries.sampling_E.tolist() == [0] * 5
    assert batch.normalizer == 1.0 and batch.algorithm.loss.name == "ppo"
    assert batch.algorithm.loss.params == pytest.approx({"epsilon": 0.2, "epsilon_high": 0.2})
    found = per_datum(batch, np.arange(5.0))
    assert [one.tolist() for one in found] == [[0.0, 1.0, 2.0], [3.0, 4.0]]


def test_weights_of_any_sign_are_advantages() -> None:
    call = read(datum([5, 6], target_tokens=[6, 7], weights=[-0.5, 0.0]), datum([5], target_tokens=[6]))
    entries = loss_batch(call).entries
    assert entries.advantage_E.tolist() == [-0.5, 0.0, 1.0]
    assert entries.weight_E.tolist() == [1.0, 1.0, 1.0]
    assert np.isnan(entries.logprob_E).all()


def test_several_targets_of_a_position() -> None:
    call = read(datum([5, 6], target_tokens=[[6, 8], [9, 8]], weights=[[0.75, 0.25], [0.5, 0.5]]))
    batch = loss_batch(call)
    assert batch.tree.tokens_T.tolist() == [5, 6, 9, 8, 8]
    assert batch.tree.parent_T.tolist() == [-1, 0, 1, 1, 0]
    assert batch.entries.token_E.tolist() == [1, 4, 2, 3]
    assert batch.entries.advantage_E.tolist() == [0.75, 0.25, 0.5, 0.5]
    assert per_datum(batch, np.arange(4.0))[0].tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_the_ratio_of_a_sequence_leaves_out_what_the_mask_does() -> None:
    columns = {"logprobs": [0.0, -1.0, -1.0], "advantages": [0.0, 1.0, 1.0]}
    one = datum([5, 6, 7], target_tokens=[6, 7, 8], **columns, sequence_ratio_mask=[0, 1, 1])
    batch = loss_batch(read(one, one, loss_fn="gspo", config=CONFIG["gspo"]))
    assert batch.entries.sequence_E.tolist() == [2, 0, 0, 3, 1, 1]
    assert batch.algorithm.loss.name == "gspo_token" and needs_sequences(batch.algorithm)
    assert batch.algorithm.loss.params == pytest.approx({"epsilon": 0.1, "epsilon_high": 0.1})


@pytest.mark.parametrize("loss_fn", LOSS_FUNCTIONS)
def test_nothing_alters_the_advantages(loss_fn: str) -> None:
    columns: dict[str, Any] = {name: [-1.0, -1.0] for name in LOSS_FUNCTIONS[loss_fn].needs}
    call = read(
        datum([5, 6], target_tokens=[6, 7], **columns), loss_fn=loss_fn, config=CONFIG.get(loss_fn, {})
    )
    algorithm = loss_batch(call).algorithm
    check_algorithm(algorithm)
    assert not needs_first_pass(algorithm) and not needs_reference(algorithm)
    assert update_count(algorithm) == 1 and algorithm.ratio_to == "sampler" and not algorithm.mismatch


def prefixes(sequences: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(ids[: end + 1]) for ids in sequences for end in range(len(ids))}


def path_to(tree: TokenTree, node: int) -> list[int]:
    ids: list[int] = []
    while node >= 0:
        ids.append(int(tree.tokens_T[node]))
        node = int(tree.parent_T[node])
    return ids[::-1]


def check_any(batch: LossBatch, data: list[tuple[list[int], list[list[int]]]]) -> None:
    check_tree(batch.tree)
    check_entries(batch.tree, batch.entries)
    wanted = [
        [*ids[: at + 1], target] for ids, targets in data for at in range(len(ids)) for target in targets[at]
    ]
    assert [path_to(batch.tree, node) for node in batch.entries.token_E.tolist()] == wanted
    assert len(batch.tree) == len(prefixes(wanted))


SMALL = st.integers(0, 3)


@pytest.mark.slow
@given(st.data())
def test_each_entry_is_the_node_of_its_target(data: st.DataObject) -> None:
    drawn = []
    for _ in range(data.draw(st.integers(1, 4))):
        ids, k = data.draw(st.lists(SMALL, min_size=1, max_size=6)), data.draw(st.integers(1, 3))
        row = st.lists(SMALL, min_size=k, max_size=k)
        drawn.append((ids, data.draw(st.lists(row, min_size=len(ids), max_size=len(ids)))))
    check_any(loss_batch(read(*(datum(ids, target_tokens=targets) for ids, targets in drawn))), drawn)


@pytest.mark.slow
@given(
    st.lists(st.lists(SMALL, min_size=1, max_size=6), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 10**6), SMALL), max_size=12),
)
def test_leaves_are_those_of_longer_sequences(
    sequences: list[list[int]], wanted: list[tuple[int, int]]
) -> None:
    tree, paths = build_tree([np.asarray(ids) for ids in sequences])
    pairs = [(at % len(tree), token) for at, token in wanted]
    parent_L = np.asarray([at for at, _ in pairs], np.int64)
    grown, moved_T, child_L = add_leaves(tree, parent_L, np.asarray([one for _, one in pairs], np.int64))
    check_tree(grown)
    longer = [[*path_to(tree, at), token] for at, token in pairs]
    assert [path_to(grown, node) for node in child_L.tolist()] == longer
    for ids, path in zip(sequences, paths, strict=True):
        assert path_to(grown, int(moved_T[path[-1]])) == ids
    assert len(grown) == len(prefixes(sequences + longer))


def test_many_odd_targets_take_no_time() -> None:
    ids = np.random.default_rng(0).integers(0, 1000, 2048)
    targets = np.append(ids[1:], 7)
    targets[:2048:4] += 1000
    call = read(datum(ids, target_tokens=targets))
    speed, began = CoreSpeed(), time.thread_time()
    batch = loss_batch(call)
    took = time.thread_time() - began
    assert len(batch.tree) == 2049 + 512
    assert took < speed.allowed(0.05)  # 0.2 ms on a core


def test_the_largest_ids_are_ids() -> None:
    most = 2**31 - 1
    batch = loss_batch(read(datum([most, 0, most], target_tokens=[most, 0, most])))
    check_any(batch, [([most, 0, most], [[most], [0], [most]])])
