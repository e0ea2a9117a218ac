from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.batch.batch_types import TokenTree
from art.batch.encode import check_tree
from art.batch.token_tree import build_tree

SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=12)


def reference(
    sequences: list[list[int]],
) -> tuple[list[int], list[int], list[int], list[int], list[list[int]]]:
    """The tree by its definition: one node per distinct prefix, children in first-seen order."""
    children: dict[tuple[int, ...], list[tuple[int, ...]]] = {(): []}
    for sequence in sequences:
        for length in range(1, len(sequence) + 1):
            prefix = tuple(sequence[:length])
            if prefix not in children:
                children[prefix] = []
                children[prefix[:-1]].append(prefix)
    order: list[tuple[int, ...]] = []

    def visit(prefix: tuple[int, ...]) -> None:
        for child in children[prefix]:
            order.append(child)
            visit(child)

    visit(())
    index = {prefix: at for at, prefix in enumerate(order)}
    parent = [index.get(prefix[:-1], -1) for prefix in order]
    end = [1 + max(at for at, other in enumerate(order) if other[: len(p)] == p) for p in order]
    paths = [[index[tuple(s[: n + 1])] for n in range(len(s))] for s in sequences]
    return [prefix[-1] for prefix in order], parent, end, [len(prefix) - 1 for prefix in order], paths


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(SEQUENCES)
def test_the_tree_is_the_set_of_distinct_prefixes(sequences: list[list[int]]) -> None:
    tree, paths = build_tree([np.array(sequence) for sequence in sequences])
    tokens, parent, end, depth, expected = reference(sequences)
    assert tree.tokens_T.tolist() == tokens
    assert tree.parent_T.tolist() == parent
    assert tree.end_T.tolist() == end
    assert tree.depth_T.tolist() == depth
    assert [path.tolist() for path in paths] == expected
    check_tree(tree)


def test_arrays_are_int32_even_without_a_sequence() -> None:
    tree, paths = build_tree([])
    assert len(tree) == 0 and not paths
    for name in ("tokens_T", "parent_T", "end_T", "depth_T"):
        assert getattr(tree, name).dtype == np.int32


def test_different_first_ids_make_different_roots() -> None:
    tree, _ = build_tree([np.array([7, 1]), np.array([8, 1]), np.array([7, 2])])
    assert tree.parent_T.tolist() == [-1, 0, 0, -1, 3]
    assert tree.tokens_T.tolist() == [7, 1, 2, 8, 1]


def test_ids_that_share_bytes_are_not_confused() -> None:
    # 256 and 1 share bytes at another offset; a byte-wise prefix that ends inside an id must not split it.
    tree, paths = build_tree([np.array([65793, 256]), np.array([65793, 1]), np.array([65792, 256])])
    assert tree.tokens_T.tolist() == [65793, 256, 1, 65792, 256]
    assert [path.tolist() for path in paths] == [[0, 1], [0, 2], [3, 4]]


@pytest.mark.slow
def test_long_paths_do_not_recurse() -> None:
    steps = sys.getrecursionlimit() + 100
    rows = [np.concatenate([np.arange(step), [90_000 + step]]) for step in range(1, steps)]
    tree, _ = build_tree(rows)
    assert len(tree) == 2 * (steps - 1)
    assert isinstance(tree, TokenTree)
