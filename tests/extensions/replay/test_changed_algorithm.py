"""`--algorithm` with parts: the others stay as recorded, defaults too where the row has others."""

from __future__ import annotations

import pytest

from art.batch.algorithms.combine import resolve
from art_extensions.replay.changed_step import changed_algorithm

pytestmark = pytest.mark.extension


def test_parts_that_are_not_named_stay_as_recorded() -> None:
    recorded = resolve("turn_gae", advantage={"whiten": True}, critic={"kind": "probe", "clip": None})
    got = changed_algorithm(recorded, '{"aggregation": "sequence_mean"}')
    assert got.aggregation.kind == "sequence_mean"
    assert got.model_copy(update={"aggregation": recorded.aggregation}) == recorded
