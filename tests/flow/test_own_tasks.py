"""A small task of a user's own is learned by the base that ships for it, as docs/guides/models.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.own_tasks import learn


@pytest.mark.slow
async def test_a_task_that_the_base_was_never_taught_reaches_twice_its_first_score(tmp_path: Path) -> None:
    learned = await learn("beat-colors", seed=0, steps=6, folder=tmp_path)
    assert learned.first <= 0.4, "the base has nothing left to learn here"
    assert learned.last >= 2 * learned.first
