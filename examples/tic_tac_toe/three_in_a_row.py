"""The world of tic-tac-toe: the board, and the players who are no model.

A board is nine characters. Each player sees himself as X and the other as O, whoever began.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

SYSTEM_PROMPT = "You play tic-tac-toe as X. Name a free cell."
CELLS = tuple(row + column for row in "ABC" for column in "123")
LINES = (
    *((0, 1, 2), (3, 4, 5), (6, 7, 8)),
    *((0, 3, 6), (1, 4, 7), (2, 5, 8)),
    *((0, 4, 8), (2, 4, 6)),
)
EMPTY = "." * 9
REWARDS = {"won": 1.0, "draw": 0.5, "lost": 0.0, "invalid": -1.0}

Player = Callable[[str, random.Random], int]
"""A board on which it is X's turn -> the cell that is played."""


def free_cells(board: str) -> list[int]:
    return [cell for cell, mark in enumerate(board) if mark == "."]


def place(board: str, cell: int) -> str:
    """Returns the board after X was put on the cell."""
    return board[:cell] + "X" + board[cell + 1 :]


def swapped(board: str) -> str:
    """Returns the board as the other player sees it."""
    return board.translate(str.maketrans("XO", "OX"))


def outcome(board: str) -> str | None:
    """Returns won, lost or draw as X sees it; None while the game goes on."""
    for line in LINES:
        marks = {board[cell] for cell in line}
        if len(marks) == 1 and marks != {"."}:
            return "won" if marks == {"X"} else "lost"
    return None if "." in board else "draw"


def draw_board(board: str) -> str:
    """Returns the board as the player reads it: a heading and three rows."""
    rows = (f"{name} {' '.join(board[3 * i : 3 * i + 3])}" for i, name in enumerate("ABC"))
    return "\n".join(("  1 2 3", *rows))


@cache
def value(board: str) -> float:
    """Returns what the board is worth to X, whose turn it is, if both play perfectly: 1, 0.5 or 0."""
    if ended := outcome(board):
        return REWARDS[ended]
    return max(1 - value(swapped(place(board, cell))) for cell in free_cells(board))


def random_player(board: str, dice: random.Random) -> int:
    return dice.choice(free_cells(board))


def perfect_player(board: str, dice: random.Random) -> int:
    """One of the best moves. It never loses."""
    worth = {cell: 1 - value(swapped(place(board, cell))) for cell in free_cells(board)}
    return dice.choice([cell for cell, one in worth.items() if one == max(worth.values())])


def play_scripted(one: Player, other: Player, *, first: bool, dice: random.Random) -> str:
    """Returns how a game of two scripted players ended for the first of them."""
    board, mine = EMPTY, first
    while True:
        board = place(board, (one if mine else other)(board, dice))
        if ended := outcome(board):
            return {"won": "lost"}.get(ended, ended) if not mine else ended
        board, mine = swapped(board), not mine


def reference_scores() -> dict[str, float]:
    """Returns the share of games that a player does not lose who begins, against random moves."""
    dice = random.Random(0)

    def not_lost(player: Player) -> float:
        ends = [play_scripted(player, random_player, first=True, dice=dice) for _ in range(2000)]
        return sum(end != "lost" for end in ends) / len(ends)

    return {"random player": not_lost(random_player), "perfect player": not_lost(perfect_player)}
