from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rows import rollout, sample

from art.batch.batch_types import GroupRow
from art.batch.build import build_batch, scored_paths, with_teacher
from art.wire.algorithm import AdvantageSpec, Algorithm

ALL = Algorithm(advantage=AdvantageSpec(kind="none"))
IDS = st.lists(st.integers(0, 2), min_size=1, max_size=5)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=8))
def test_each_trained_token_is_asked_once_behind_its_own_context(
    turns: list[tuple[list[int], list[int]]],
) -> None:
    rows = [sample(f"s{n}", prompt, ids) for n, (prompt, ids) in enumerate(turns)]
    batch = build_batch([GroupRow(rollouts=[rollout("a", 1.0, *rows)])], algorithm=ALL)
    paths = scored_paths(batch.tree, batch.entries)
    spelled = [tuple(batch.tree.tokens_T[path].tolist()) for path in paths]
    wanted = {(*prompt, *ids) for prompt, ids in turns}
    assert set(spelled) == {one for one in wanted if not any(o[: len(one)] == one for o in wanted - {one})}
    assert len(spelled) == len(set(spelled))

    # A teacher whose "logprob" names the context: no two contexts of these short rows share one.
    def named(context: tuple[int, ...]) -> float:
        return -float(sum(4**place * (token + 1) for place, token in enumerate(context)))

    scores = [[named(row[:at]) for at in range(2, len(row) + 1)] for row in spelled]
    taught = with_teacher(batch, paths, scores).entries.teacher_E
    own = [named((*prompt, *ids[: at + 1])) for prompt, ids in turns for at in range(len(ids))]
    assert taught is not None and np.array_equal(taught, np.array(own, np.float32))
