"""The world of codenames: boards give nothing away, and the demonstrations are noisy."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "examples" / "codenames"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import codenames_board

    return codenames_board


def test_neither_the_order_of_words_nor_of_clues_says_which_is_meant(world: ModuleType) -> None:
    places: dict[str, list[int]] = {"giver": [0] * 3, "guesser": [0] * 3, "clue": [0] * 3}
    for number in range(3000):
        board = world.draw_board("train 0", number)
        assert sorted(board.seen_by_giver) == sorted(board.seen_by_guesser)
        assert len({world.FAMILY_OF[word] for word in board.seen_by_giver}) == 3
        assert board.secret not in board.ask_guesser(world.FAMILY_OF[board.secret]).split("Choose")[0]
        places["giver"][board.seen_by_giver.index(board.secret)] += 1
        places["guesser"][board.seen_by_guesser.index(board.secret)] += 1
        places["clue"][board.clues.index(world.FAMILY_OF[board.secret])] += 1
    for counts in places.values():
        assert all(850 < count < 1150 for count in counts), places


def test_demonstrations_are_right_a_little_more_often_than_by_chance(world: ModuleType) -> None:
    assert 0.38 < world.reference_scores()["the demonstrations"] < 0.5
    for number in range(50):
        (ask, clue), (_, guess) = world.noisy_play(number)
        board = world.draw_board("careless play", number)
        assert ask["content"] == board.ask_giver
        assert clue["content"] in board.clues and guess["content"] in board.seen_by_guesser
