"""Whatever comes from outside is read, or refused by an error that says why: within its time and memory.

An hour of it: `make fuzz`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from file_targets import run_pages
from fuzz import try_alone
from hostile_inputs import (
    CORPUS,
    GOOD,
    OverLimitError,
    corpus_of,
    find_object,
    inputs,
    limited,
    outside,
    the_list,
    try_input,
    trying,
    warm_up,
)
from hypothesis import given
from places import Place
from targets import targets

pytestmark = [pytest.mark.slow, pytest.mark.extension]

EXAMPLES, DEAR_EXAMPLES = 60, 6
"""Of each target in CI, where they are the same in each run."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        made = Place(tmp_path_factory.mktemp("hostile"))
        yield made
        made.close()


def test_every_row_has_its_target_its_readers_its_limits_and_a_corpus() -> None:
    assert set(outside()) == set(targets()) == {path.name for path in CORPUS.iterdir()}
    for row in outside().values():
        for path in (*row.readers, *row.errors):
            assert callable(find_object(path)), path
        for kind, path in row.limits.items():
            assert kind in ("bytes", "depth", "count", "time", "memory"), path
            assert find_object(path), path
        for kind in ("bytes", "time"):
            known = (kind in row.limits) + (kind in row.unlimited)
            assert known == 1, f"{row.target}: name the limit of {kind}, or the reason why it has none"
        assert any(name.startswith((GOOD, "seed")) for name in corpus_of(row.target)), row.target


def test_what_has_no_limit_has_a_reason_of_the_list() -> None:
    given = {reason for row in outside().values() for reason in row.unlimited.values()}
    assert given == set(the_list()["reasons"]) and all(the_list()["reasons"].values())
    assert not [row.target for row in outside().values() if set(row.unlimited) - {"bytes", "time"}]


@pytest.mark.parametrize("target", outside())
def test_the_corpus_is_read(place: Place, target: str) -> None:
    """The good inputs are accepted; those that were a bug once are read, or refused."""
    row, read = outside()[target], partial(targets()[target], place=place)
    warm_up(target, read)
    for name, content in corpus_of(target).items():
        refused = try_input(row, read, content)
        assert refused is None or not name.startswith(GOOD), f"{name}: {refused!r}"


def test_the_pages_of_a_good_run_are_all_there(place: Place) -> None:
    """A target whose addresses lead nowhere tries nothing."""
    statuses = run_pages(corpus_of("run_pages")["good_run"], place)
    assert isinstance(statuses, list) and set(statuses) == {200}


@pytest.mark.parametrize("target", outside())
def test_hostile_inputs_are_read_or_refused(place: Place, target: str) -> None:
    row, read = outside()[target], partial(targets()[target], place=place)
    if row.alone:
        try_alone(target, 1)
        return
    warm_up(target, read)

    @trying(DEAR_EXAMPLES if row.dear else EXAMPLES, derandomize=True)
    @given(inputs(target))
    def try_one(content: bytes) -> None:
        try_input(row, read, content)

    try_one()


def test_what_takes_too_long_or_too_much_is_found() -> None:
    def spin() -> None:
        while True:
            pass

    with pytest.raises(OverLimitError, match="processor time"), limited(0.05, 64):
        spin()
    with pytest.raises(OverLimitError, match="MiB"), limited(5.0, 64):
        assert len(b"\1" * (200 << 20))
