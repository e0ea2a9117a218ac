"""The world of tic-tac-toe: the board, and the players who are no model.

A board is nine characters. Each player sees himself as X and the other as O, whoever began.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import cache

SYSTEM_PROMPT = "You play tic-tac-toe as X. Name a free cell."
CELLS = tuple(row + column for row in "ABC" for column in "123")
LINES = (
    *((0, 1, 2), (3, 4, 5), (6, 7, 8)),
    *((0, 3, 6), (1, 4, 7), (2, 5, 8)),
    *((0, 4, 8), (2, 4, 6)),
)
EMPTY = "." * 9
PLAYS_BOTH = "You play a game."
PAIRS = ("XX", "OO", "X.", "..", "O.", "XO")
"""What the two other cells of a line can hold."""
CARE = 0.5
"""Share of the demonstrations' moves that complete a line if one can, the own one first."""
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


def describe_cells(board: str) -> str:
    """Returns a line for each free cell: its number, and what its lines have in their two other cells."""
    rows = []
    for cell in free_cells(board):
        others = ("".join(board[other] for other in line if other != cell) for line in LINES if cell in line)
        pairs = ("".join(sorted(pair, key="XO.".index)) for pair in others)
        rows.append(f"{cell + 1} {' '.join(sorted(pairs, key=PAIRS.index))}")
    return "\n".join(rows)


def question(board: str) -> list[dict[str, str]]:
    """Returns what a player of either seat is told. The board says all that matters of the game."""
    return [{"role": "system", "content": PLAYS_BOTH}, {"role": "user", "content": describe_cells(board)}]


def named_cell(said: str, board: str) -> int | None:
    """Returns the cell that a reply names; None for anything but one free cell."""
    named = re.findall(r"\d+", said)
    cell = int(named[0]) - 1 if len(named) == 1 else -1
    return cell if cell in free_cells(board) else None


def half_of_cells(board: str) -> list[str]:
    """Draws half of the free cells, as a player names them."""
    free = free_cells(board)
    return [str(cell + 1) for cell in random.sample(free, (len(free) + 1) // 2)]


def completing_cells(board: str, mark: str) -> list[int]:
    """Returns the free cells that make a line of three of the mark."""
    lines = [line for line in LINES if sorted(board[cell] for cell in line) == sorted([".", mark, mark])]
    return sorted({cell for line in lines for cell in line if board[cell] == "."})


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


def noisy_player(board: str, dice: random.Random) -> int:
    wanted = completing_cells(board, "X") or completing_cells(board, "O")
    return dice.choice(wanted if wanted and dice.random() < CARE else free_cells(board))


def opening(dice: random.Random) -> str:
    """Returns a board after at most three random moves, most often after one or two."""
    board = EMPTY
    for _ in range(dice.choice((0, 1, 1, 2, 2, 3))):
        board = swapped(place(board, random_player(board, dice)))
    return board


def next_boards(count: int, lost: Sequence[str], dice: random.Random) -> list[str]:
    """Returns boards to begin from: half of them openings, and half of them boards that were lost from."""
    again = sorted(set(lost))
    half = count // 2
    return [opening(dice) for _ in range(count - half)] + dice.sample(again, min(half, len(again)))


def noisy_games(count: int, dice: random.Random) -> list[dict[str, list[dict[str, str]]]]:
    """Returns the moves of noisy games, each as a conversation."""
    shown = []
    for _ in range(count):
        board = EMPTY
        while outcome(board) is None:
            cell = noisy_player(board, dice)
            said = {"role": "assistant", "content": str(cell + 1)}
            shown.append({"messages": [*question(board), said]})
            board = swapped(place(board, cell))
    return shown


def play_scripted(one: Player, other: Player, *, first: bool, dice: random.Random) -> str:
    """Returns how a game of two scripted players ended for the first of them."""
    board, mine = EMPTY, first
    while True:
        board = place(board, (one if mine else other)(board, dice))
        if ended := outcome(board):
            return {"won": "lost"}.get(ended, ended) if not mine else ended
        board, mine = swapped(board), not mine


def share_not_lost(player: Player, against: Player, *, begins: Sequence[bool]) -> float:
    """Returns the share of 2,000 games; whether the player begins is taken from `begins` in turn."""
    dice = random.Random(0)
    ends = [play_scripted(player, against, first=begins[n % len(begins)], dice=dice) for n in range(2000)]
    return sum(end != "lost" for end in ends) / len(ends)


def reference_scores() -> dict[str, float]:
    """Returns the share of games that a player does not lose who begins, against random moves."""
    players = {"random player": random_player, "perfect player": perfect_player}
    return {name: share_not_lost(player, random_player, begins=[True]) for name, player in players.items()}


def scores_against_perfect() -> dict[str, float]:
    """Returns the share of games that is not lost against perfect play, in each seat half of the time."""
    players = {
        "random player": random_player,
        "the demonstrations": noisy_player,
        "perfect player": perfect_player,
    }
    return {
        name: share_not_lost(player, perfect_player, begins=[True, False]) for name, player in players.items()
    }
