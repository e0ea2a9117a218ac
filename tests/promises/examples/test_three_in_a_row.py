"""The world of tic-tac-toe: the rules against a plain search, and the scripted players."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

FOLDER = Path(__file__).parents[3] / "examples" / "tic_tac_toe"


@pytest.fixture(scope="module")
def world() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import three_in_a_row

        return three_in_a_row


@given(st.lists(st.integers(0, 8), unique=True, max_size=9))
def test_the_outcome_is_the_same_game_for_both_players(world: ModuleType, moves: list[int]) -> None:
    board = world.EMPTY
    for cell in moves:
        if world.outcome(board):
            break
        board = world.swapped(world.place(board, cell))
    theirs = {"won": "lost", "lost": "won"}.get(world.outcome(board), world.outcome(board))
    assert world.outcome(world.swapped(board)) == theirs
    assert len(world.free_cells(board)) == board.count(".")
    rows = [
        board[0:3],
        board[3:6],
        board[6:9],
        board[0::3],
        board[1::3],
        board[2::3],
        board[0::4],
        board[2:7:2],
    ]
    assert (world.outcome(board) == "won") == ("XXX" in rows and "OOO" not in rows)


@pytest.mark.slow
def test_a_perfect_player_never_loses_and_two_of_them_draw(world: ModuleType) -> None:
    dice = random.Random(1)
    ends = {
        world.play_scripted(world.perfect_player, world.random_player, first=first, dice=dice)
        for first in (True, False)
        for _ in range(200)
    }
    assert "lost" not in ends and "won" in ends
    both = {
        world.play_scripted(world.perfect_player, world.perfect_player, first=first, dice=dice)
        for first in (True, False)
        for _ in range(20)
    }
    assert both == {"draw"}
    assert world.value(world.EMPTY) == 0.5
