"""A small task of a user's own is learned by the base that ships for it, as docs/guides/models.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.learning.own_tasks import EVALUATIONS, learn


@pytest.mark.slow
async def test_a_task_that_the_base_was_never_taught_is_learned(tmp_path: Path) -> None:
    """One seed, so no figure of the page: that is for `bench.learning.own_tasks`."""
    learned = await learn("beat-colors", seed=0, steps=6, folder=tmp_path)
    assert learned.first <= 0.5, "the base has nothing left to learn here"
    error = sum(share * (1 - share) / EVALUATIONS for share in (learned.first, learned.last)) ** 0.5
    assert learned.last - learned.first >= 3 * error
