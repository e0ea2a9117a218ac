"""Each kind of mischief, how often it comes, and that it comes the same way again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from art.errors import ConfigurationError
from art_extensions.testing.answers import IN_THE_ANSWER, KINDS, Mischief, spoil


def answer() -> dict[str, Any]:
    names = ("aaaaaa", "bbbbbb")
    return {"scores": [{"trajectory_id": name, "explanation": "", "score": 0.5} for name in names]}


def ids(spoiled: Any) -> list[str]:
    return [row["trajectory_id"] for row in spoiled["scores"]]


def test_rates_are_kept_and_a_seed_brings_the_same_trouble() -> None:
    mischief = Mischief.everything(0.65, seed=3)
    dice, again = mischief.sequence(), mischief.sequence()
    drawn = [mischief.draw(dice) for _ in range(20_000)]
    assert drawn == [mischief.draw(again) for _ in range(20_000)]
    shares = {kind: number / 20_000 for kind, number in Counter(drawn).items()}
    assert set(shares) == {*KINDS, None}
    assert all(0.04 < shares[kind] < 0.06 for kind in KINDS)


def test_rates_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"hang=1\.5"):
        Mischief(hang=1.5)
    with pytest.raises(ConfigurationError, match=r"1\.2"):
        Mischief(hang=0.6, cut=0.6)
    with pytest.raises(ConfigurationError, match="hangs"):
        Mischief.everything(0.1, hangs=0.2)


def test_lists_are_spoiled_in_each_way() -> None:
    whole = answer()
    assert ids(spoil(whole, "too_few")) == ["bbbbbb"]
    assert ids(spoil(whole, "too_many")) == ["aaaaaa", "bbbbbb", "zzzzzz"]
    assert ids(spoil(whole, "wrong_ids")) == ["1", "2"]
    assert ids(spoil(whole, "wrong_order")) == ["bbbbbb", "aaaaaa"]
    assert [row["score"] for row in spoil(whole, "out_of_range")["scores"]] == [7.0, 0.5]
    assert spoil(whole, "prose") == whole == answer()


def test_verdicts_and_winners_are_spoiled_too() -> None:
    verdicts = {"verdicts": [{"criterion": "truth", "score": 0.5}]}
    assert spoil(verdicts, "wrong_ids") == {"verdicts": [{"criterion": "1", "score": 0.5}]}
    winner = {"winner": "aaaaaa", "explanation": ""}
    assert spoil(winner, "too_few") == {}
    assert spoil(winner, "too_many")["winner"] == "zzzzzz"
    assert spoil(winner, "wrong_order") == winner


@pytest.mark.parametrize("kind", IN_THE_ANSWER)
def test_texts_and_lists_of_texts_survive(kind: str) -> None:
    assert spoil("text", kind) == "text"
    assert isinstance(spoil({"inputs": ["a", "b"]}, kind)["inputs"], list)
