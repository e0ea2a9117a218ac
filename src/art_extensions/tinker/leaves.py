"""Adds tokens that nothing follows to a token tree, many at once.

Letters: T = nodes of the tree before, L = leaves asked for.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from art.batch.batch_types import IntArray, TokenTree

_IDS = 2**31


def add_leaves(
    tree: TokenTree, parent_L: npt.NDArray[np.integer], id_L: npt.NDArray[np.integer]
) -> tuple[TokenTree, IntArray, IntArray]:
    """Returns a tree in which node `parent_L` has a child of id `id_L`, for each pair; the new number of each
    node, [T]; and the number of each pair's child, [L].

    Children that are there already are used again, and equal pairs share one. New ones are the last children
    of their parents. The work is that of sorting.

    >>> from art.batch.token_tree import build_tree
    >>> tree, _ = build_tree([np.array([5, 6, 7])])
    >>> grown, moved, child = add_leaves(tree, np.array([0, 1, 0]), np.array([9, 7, 9]))
    >>> grown.tokens_T.tolist(), grown.parent_T.tolist(), grown.end_T.tolist()
    ([5, 6, 7, 9], [-1, 0, 1, 0], [4, 3, 3, 4])
    >>> moved.tolist(), child.tolist()
    ([0, 1, 2], [3, 2, 3])
    """
    size = len(tree)
    key_L = _keys(parent_L, id_L)
    node_L, known_L = _find(_keys(tree.parent_T, tree.tokens_T), key_L)
    # Each new leaf once, in the order of the new tree: behind its parent's subtree, deeper parents first.
    new_key, of_new = np.unique(key_L[~known_L], return_inverse=True)
    parent = new_key // _IDS - 1
    place = _places(tree.end_T[parent], tree.depth_T[parent], size)
    order = np.argsort(place, kind="stable")
    parent, place, new_id = parent[order], place[order], (new_key % _IDS)[order]
    before = tree.end_T[parent]

    index_T = np.arange(size)
    moved_T = index_T + np.searchsorted(before, index_T, side="right")
    number = before + np.arange(len(before))
    end_T = tree.end_T + np.searchsorted(place, _places(tree.end_T, tree.depth_T, size), side="right")
    inner_T = tree.parent_T >= 0

    grown = size + len(number)
    tokens, parents, ends, depths = (np.zeros(grown, np.int32) for _ in range(4))
    tokens[moved_T], tokens[number] = tree.tokens_T, new_id
    parents[moved_T] = np.where(inner_T, moved_T[tree.parent_T], -1)
    parents[number] = moved_T[parent]
    ends[moved_T], ends[number] = end_T, number + 1
    depths[moved_T], depths[number] = tree.depth_T, tree.depth_T[parent] + 1

    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    child_L = np.empty(len(key_L), np.int64)
    child_L[known_L] = moved_T[node_L[known_L]]
    child_L[~known_L] = number[rank[of_new]]
    taller = dataclasses.replace(tree, tokens_T=tokens, parent_T=parents, end_T=ends, depth_T=depths)
    return taller, moved_T.astype(np.int32), child_L.astype(np.int32)


def _keys(parent: npt.NDArray[np.integer], token: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """One number for a parent (-1: a root) and an id."""
    return (parent.astype(np.int64) + 1) * _IDS + token.astype(np.int64)


def _places(end: npt.NDArray[np.integer], depth: npt.NDArray[np.integer], size: int) -> npt.NDArray[np.int64]:
    """Numbers that rise with the end of a subtree, and of subtrees that end together with the height of their
    roots: those lie on one path, so no two are equal."""
    return end.astype(np.int64) * (size + 1) + (size - depth.astype(np.int64))


def _find(
    known: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The index of each wanted key among the known ones, and whether it is there."""
    order = np.argsort(known)
    at = np.searchsorted(known[order], wanted).clip(max=len(known) - 1)
    found = order[at]
    return found, known[found] == wanted
