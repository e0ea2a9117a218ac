"""The collector's rest while a worker loads."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from art.process.resources import pause_collector, resume_collector


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.slow
def test_it_rests_until_it_is_resumed_and_leaves_alone_what_was_loaded() -> None:
    gc.unfreeze()  # other tests of this process may have frozen theirs
    pause_collector()
    assert not gc.isenabled()
    loaded: list[list[int]] = [[] for _ in range(1000)]
    resume_collector()
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(loaded)
