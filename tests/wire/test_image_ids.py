"""Images in ids: what is spelled is read again, whatever stands around it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.wire.samples import ImageRun, image_ids, image_name, image_runs

TEXT = st.lists(st.integers(0, 200_000), min_size=1, max_size=5)
PICTURE = st.tuples(st.binary(max_size=8), st.integers(4, 40))


@given(before=TEXT, pictures=st.lists(st.tuples(PICTURE, TEXT), max_size=4))
def test_runs_are_found_with_their_names(
    before: list[int], pictures: list[tuple[tuple[bytes, int], list[int]]]
) -> None:
    ids, wanted = list(before), []
    for (file, tokens), text in pictures:
        name = image_name(file)
        wanted.append(ImageRun(name, len(ids), len(ids) + tokens))
        ids += [*image_ids(name, tokens), *text]
    assert all(-(2**31) <= one < 2**31 for one in ids)
    assert image_runs(ids) == wanted


@pytest.mark.parametrize("ids", [[-5], [5, -1, -2, -3, 7], [-1, -2, -3, -4, -1, -2, -3, -5], [-(2**31)] * 4])
def test_other_negative_ids_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="are no image"):
        image_runs(ids)


def test_too_few_tokens() -> None:
    with pytest.raises(ValueError, match="image of 3 tokens"):
        image_ids(image_name(b""), 3)
