"""Whatever comes from outside is read, or refused by an error that says why: within its time and memory.

An hour of it: `make fuzz`.
"""

from __future__ import annotations

import struct
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
    deep_inputs,
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

KINDS = ("bytes", "depth", "count", "time")
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
        for kind in KINDS:
            known = (kind in row.limits) + (kind in row.unlimited)
            assert known == 1, f"{row.target}: name the limit of {kind}, or what bounds it"
        assert any(name.startswith((GOOD, "seed")) for name in corpus_of(row.target)), row.target


def test_what_has_no_limit_has_a_reason_of_the_list() -> None:
    given = {reason for row in outside().values() for reason in row.unlimited.values()}
    assert given == set(the_list()["reasons"]) and all(the_list()["reasons"].values())
    assert not [row.target for row in outside().values() if set(row.unlimited) - set(KINDS)]


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


BY_PARSER = [name for name, row in outside().items() if row.unlimited.get("depth") == "parser"]


@pytest.mark.parametrize("target", BY_PARSER)
def test_a_parser_that_is_trusted_with_depth_refuses_what_no_stack_holds(place: Place, target: str) -> None:
    """Refused, or left out where the reader knows no such field: it does not crash, and costs no more."""
    row, read = outside()[target], partial(targets()[target], place=place)
    warm_up(target, read)
    for content in deep_inputs(target):
        try_input(row, read, content)


def test_a_metadata_list_of_a_gguf_file_that_nests_too_deep_is_refused(place: Place) -> None:
    def text(content: bytes) -> bytes:
        return struct.pack("<Q", len(content)) + content

    nested = struct.pack("<IQ", 9, 1) * 100_000 + struct.pack("<IQ", 0, 0)
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"general.deep") + struct.pack("<I", 9) + nested
    refused = try_input(outside()["gguf"], partial(targets()["gguf"], place=place), content)
    assert refused is not None and "recursion" in str(refused)


def test_what_takes_too_long_or_too_much_is_found() -> None:
    def spin() -> None:
        while True:
            pass

    with pytest.raises(OverLimitError, match="processor time"), limited(0.05, 64):
        spin()
    with pytest.raises(OverLimitError, match="MiB"), limited(5.0, 64):
        assert len(b"\1" * (200 << 20))
