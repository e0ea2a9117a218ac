"""The world of 2048: the rules by their properties, what is read and said, the judge, scripted players."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

FOLDER = Path(__file__).parents[3] / "examples" / "game_2048"
CELLS = st.sampled_from([0, 0, 2, 2, 4, 8, 16])
ROWS = st.tuples(CELLS, CELLS, CELLS, CELLS)
Board = tuple[tuple[int, ...], ...]
BOARDS = st.tuples(ROWS, ROWS, ROWS, ROWS)
SEEDS = st.text("abc0123456789/", max_size=8)


@pytest.fixture(scope="module")
def world() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import sliding_tiles

        return sliding_tiles


@pytest.mark.parametrize(
    ("row", "after", "score"),
    [
        ((0, 2, 0, 2), (4, 0, 0, 0), 4),
        ((2, 2, 2, 0), (4, 2, 0, 0), 4),
        ((2, 2, 2, 2), (4, 4, 0, 0), 8),
        ((4, 2, 2, 0), (4, 4, 0, 0), 4),
        ((2, 4, 8, 16), (2, 4, 8, 16), 0),
    ],
)
def test_equal_tiles_that_meet_merge_once(
    world: ModuleType, row: tuple[int, ...], after: tuple[int, ...], score: int
) -> None:
    assert world.merged(row) == (after, score)


@given(BOARDS)
def test_a_slide_keeps_the_sum_and_leaves_no_gap(world: ModuleType, board: Board) -> None:
    for move in world.MOVES:
        after, score = world.slide(board, move)
        assert sum(map(sum, after)) == sum(map(sum, board))
        assert sorted(filter(None, sum(after, ()))) == sorted(filter(None, sum(board, ()))) or score > 0
        lines = after if move in ("left", "right") else tuple(zip(*after, strict=True))
        for line in lines if move in ("left", "up") else [line[::-1] for line in lines]:
            assert not any(here == 0 and there for here, there in pairwise(line))
    assert world.slide(board, "right")[1] == world.slide(board, "left")[1]
    assert world.slide(board, "up")[1] == world.slide(board, "down")[1]


@given(BOARDS)
def test_a_board_that_is_read_is_the_board_that_was_said(world: ModuleType, board: Board) -> None:
    assert world.read_board(world.say_board(board)) == board
    told = world.say_board(board).splitlines()[-1]
    assert [move for move in world.MOVES if move in told.split()] == world.legal_moves(board)


@given(SEEDS, st.lists(st.sampled_from(["left", "right", "up", "down"]), max_size=30))
def test_the_same_moves_in_two_games_of_a_seed_lead_to_the_same_board(
    world: ModuleType, seed: str, moves: list[str]
) -> None:
    one, other = world.SlidingTiles(seed), world.SlidingTiles(seed)
    for move in moves:
        if one.ended:
            break
        legal = world.legal_moves(one.board)
        before = sum(map(sum, one.board))
        one.play(move)
        other.play(move)
        assert one.illegal == (move not in legal)
        assert sum(map(sum, one.board)) - before in ((0,) if one.illegal else (2, 4))
    assert (one.board, one.score, one.moves) == (other.board, other.score, other.moves)
    assert one.ended == (one.illegal or one.moves == world.MOST_MOVES or not world.legal_moves(one.board))


def test_two_seeds_begin_with_different_boards(world: ModuleType) -> None:
    assert len({world.SlidingTiles(f"{number}").board for number in range(40)}) > 20


@pytest.mark.parametrize(
    ("reply", "move"),
    [("left", "left"), (" Up.", "up"), ("left or right", None), ("leftover", None), ("0", None), ("", None)],
)
def test_a_reply_names_one_move_or_none(world: ModuleType, reply: str, move: str | None) -> None:
    assert world.named_move(reply) == move


def test_a_reply_without_a_move_ends_the_game(world: ModuleType) -> None:
    game = world.SlidingTiles("x")
    board = game.board
    game.play(None)
    assert game.ended and game.illegal and (game.board, game.moves) == (board, 0)


def test_the_judge_that_runs_here_counts_the_score_from_the_boards(world: ModuleType) -> None:
    ended = set()
    for number in range(60):
        messages = world.demonstration(number)
        game = world.SlidingTiles(f"demonstrations/{number}")
        for message in messages:
            if message["role"] == "assistant":
                game.play(message["content"])
        assert game.ended
        ended.add(game.illegal)
        expected = (world.worth(game.score, illegal=game.illegal) + world.ILLEGAL_COSTS) / 2
        assert world.quality_of(messages) == pytest.approx(min(1.0, expected))
    assert ended == {True, False}


@pytest.mark.slow
def test_who_looks_at_the_board_scores_more(world: ModuleType) -> None:
    scores = world.reference_scores()
    assert scores["random moves"] * 1.5 < scores["random legal moves"] < scores["greedy player"]
    dice = random.Random(0)
    board = world.SlidingTiles("y").board
    assert world.legal_player(board, dice) in world.legal_moves(board)
