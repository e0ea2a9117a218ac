"""Token sequences -> one prefix tree in depth-first order.

Built as a radix tree: a run of tokens without a branch is one object, and runs are compared as bytes (one
memcmp), so the cost is that of reading the tokens once, with no Python object per token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from art.batch.batch_types import IntArray, TokenTree

_WIDTH = 4
"""Bytes of one int32 id."""


class _Run:
    """Tokens without a branch between them, and the runs that follow, by their first token."""

    __slots__ = ("children", "depth", "end", "ids", "parent", "start")

    def __init__(self, ids: bytes) -> None:
        self.ids = ids
        self.children: dict[bytes, _Run] = {}
        self.parent = -1  # node before the run's first token
        self.depth = 0  # of its first token
        self.start = 0  # index of its first token
        self.end = 0  # index after its last descendant


def build_tree(sequences: Sequence[npt.NDArray[np.integer]]) -> tuple[TokenTree, list[IntArray]]:
    """The tree of all `sequences`, and for each sequence the nodes it passes, from its root on.

    See `TokenTree` for an example in numbers.
    """
    root = _Run(b"")
    paths = [np.ascontiguousarray(sequence, dtype=np.int32).tobytes() for sequence in sequences]
    for path in paths:
        _insert(root, path)
    runs = _number(root)
    return _arrays(runs), [_nodes(root, path) for path in paths]


def _insert(root: _Run, path: bytes) -> None:
    run, at = root, 0
    while at < len(path):
        first = path[at : at + _WIDTH]
        child = run.children.get(first)
        if child is None:
            run.children[first] = _Run(path[at:])
            return
        if not path.startswith(child.ids, at):
            child = _split(run, child, _shared(child.ids, path[at : at + len(child.ids)]))
        run, at = child, at + len(child.ids)


def _shared(one: bytes, other: bytes) -> int:
    """Bytes of the common prefix, in whole tokens."""
    size = min(len(one), len(other))
    differs = np.flatnonzero(np.frombuffer(one[:size], np.int32) != np.frombuffer(other[:size], np.int32))
    return int(differs[0]) * _WIDTH if len(differs) else size


def _split(parent: _Run, run: _Run, at: int) -> _Run:
    """Cut `run` in two after `at` bytes; the first part takes its place among its parent's children."""
    head = _Run(run.ids[:at])
    parent.children[head.ids[:_WIDTH]] = head
    run.ids = run.ids[at:]
    head.children[run.ids[:_WIDTH]] = run
    return head


def _number(root: _Run) -> list[_Run]:
    """All runs in depth-first order, their places in the arrays filled in."""
    runs: list[_Run] = []
    stack = list(reversed(root.children.values()))
    at = 0
    while stack:
        run = stack.pop()
        length = len(run.ids) // _WIDTH
        run.start, at = at, at + length
        runs.append(run)
        for child in reversed(run.children.values()):
            child.parent, child.depth = at - 1, run.depth + length
            stack.append(child)
    for run in reversed(runs):
        last = next(reversed(run.children.values()), None)
        run.end = last.end if last else run.start + len(run.ids) // _WIDTH
    return runs


def _arrays(runs: Sequence[_Run]) -> TokenTree:
    tokens_T = np.frombuffer(b"".join(run.ids for run in runs), np.int32).copy()
    lengths_R = np.array([len(run.ids) // _WIDTH for run in runs], np.int32)
    starts_R = np.array([run.start for run in runs], np.int32)
    depths_R = np.array([run.depth for run in runs], np.int32)
    index_T = np.arange(len(tokens_T), dtype=np.int32)
    parent_T = index_T - 1
    parent_T[starts_R] = np.array([run.parent for run in runs], np.int32)
    return TokenTree(
        tokens_T=tokens_T,
        parent_T=parent_T,
        end_T=np.repeat(np.array([run.end for run in runs], np.int32), lengths_R),
        depth_T=index_T - np.repeat(starts_R - depths_R, lengths_R),
    )


def _nodes(root: _Run, path: bytes) -> IntArray:
    """The nodes of an inserted path. Its end is the end of a run, so whole runs are walked."""
    pieces = []
    run, at = root, 0
    while at < len(path):
        run = run.children[path[at : at + _WIDTH]]
        size = len(run.ids)
        pieces.append(np.arange(run.start, run.start + size // _WIDTH, dtype=np.int32))
        at += size
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)
