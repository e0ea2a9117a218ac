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


@given(st.lists(st.integers(0, 8), unique=True, max_size=8))
def test_what_is_said_of_a_cell_is_what_its_lines_hold(world: ModuleType, moves: list[int]) -> None:
    board = world.EMPTY
    for cell in moves:
        board = world.swapped(world.place(board, cell))
    rows = dict(line.split(" ", 1) for line in world.describe_cells(board).splitlines())
    assert [int(cell) - 1 for cell in rows] == world.free_cells(board)
    for cell, pairs in rows.items():
        assert len(pairs.split()) == sum(int(cell) - 1 in line for line in world.LINES)
        after = world.outcome(world.place(board, int(cell) - 1))
        assert ("XX" in pairs) == (int(cell) - 1 in world.completing_cells(board, "X"))
        if world.outcome(board) is None:
            assert ("XX" in pairs) == (after == "won")


def test_the_moves_of_noisy_games_are_legal(world: ModuleType) -> None:
    moves = world.noisy_games(20, random.Random(3))
    assert moves == world.noisy_games(20, random.Random(3))
    assert 20 * 5 <= len(moves) <= 20 * 9
    for move in moves:
        system, told, named = move["messages"]
        assert [one["role"] for one in move["messages"]] == ["system", "user", "assistant"]
        assert system["content"] == world.PLAYS_BOTH
        assert named["content"] in [line.split()[0] for line in told["content"].splitlines()]


def test_a_reply_names_one_free_cell_or_none(world: ModuleType) -> None:
    board = "X..O....."
    assert [world.named_cell(said, board) for said in ("2", " 9.", "cell 5")] == [1, 8, 4]
    assert [world.named_cell(said, board) for said in ("", "1", "0", "10", "2 3", "b")] == [None] * 6


def test_half_of_the_free_cells_are_drawn(world: ModuleType) -> None:
    for board, most in ((world.EMPTY, 5), ("XOXOXOOX.", 1), ("X..O.....", 4)):
        named = {int(cell) - 1 for cell in world.half_of_cells(board)}
        assert len(named) == most
        assert named <= set(world.free_cells(board))


def test_half_of_the_next_boards_were_lost_from(world: ModuleType) -> None:
    lost = ["XO.......", "X.O......", "XO......."]
    boards = world.next_boards(4, lost, random.Random(1))
    assert set(boards[2:]) == set(lost) and len(boards) == 4
    assert len(world.next_boards(40, lost, random.Random(1))) == 22
    assert len(world.next_boards(5, [], random.Random(1))) == 3


def test_an_opening_is_a_game_that_goes_on(world: ModuleType) -> None:
    boards = {world.opening(random.Random(seed)) for seed in range(200)}
    assert {board.count(".") for board in boards} == {6, 7, 8, 9}
    assert not any(world.outcome(board) for board in boards)
    assert all(board.count("O") - board.count("X") in (0, 1) for board in boards), "X is to move"
