"""The world of 2048: sliding tiles on a board of four rows and four columns.

A move slides all tiles to one side. Two equal tiles that meet become one of their sum, and the sum is added
to the score. Then a new tile appears in an empty cell, chosen by the seed of the game. A move that changes
nothing is illegal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SYSTEM_PROMPT = "You play a game."
MOVES = ("left", "up", "right", "down")
"""Around the board: whoever prefers early or late ones falls back to a neighbouring side."""
SIZE = 4
FOURS = 0.1
"""The share of new tiles that are a 4, not a 2."""
MOST_MOVES = 20
"""The moves of a game, if no illegal one ends it earlier."""
CARE = 0.6
"""The share of moves at which the player of the demonstrations looks at what is legal."""
ILLEGAL_COSTS = 0.1

Board = tuple[tuple[int, ...], ...]
"""Rows of tiles; 0 is an empty cell."""
Player = Callable[[Board, random.Random], str]
"""A board, and dice -> a move."""

EMPTY: Board = ((0,) * SIZE,) * SIZE


def merged(row: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Returns a row after a slide to the left, and the score of it."""
    tiles, score = [tile for tile in row if tile], 0
    for at in range(len(tiles) - 1):
        if tiles[at] and tiles[at] == tiles[at + 1]:
            tiles[at], tiles[at + 1] = 2 * tiles[at], 0
            score += tiles[at]
    tiles = [tile for tile in tiles if tile]
    return (*tiles, *(0,) * (len(row) - len(tiles))), score


def mirrored(board: Board) -> Board:
    return tuple(row[::-1] for row in board)


def transposed(board: Board) -> Board:
    return tuple(zip(*board, strict=True))


def slide(board: Board, move: str) -> tuple[Board, int]:
    """Returns the board after a move, before a new tile appears, and the score of the move."""
    if move in ("up", "down"):
        turned, score = slide(transposed(board), {"up": "left", "down": "right"}[move])
        return transposed(turned), score
    if move == "right":
        turned, score = slide(mirrored(board), "left")
        return mirrored(turned), score
    rows = [merged(row) for row in board]
    return tuple(row for row, _ in rows), sum(score for _, score in rows)


def legal_moves(board: Board) -> list[str]:
    return [move for move in MOVES if slide(board, move)[0] != board]


def with_new_tile(board: Board, dice: random.Random) -> Board:
    """Returns the board with a new tile in an empty cell."""
    cells = [(row, column) for row in range(SIZE) for column in range(SIZE) if not board[row][column]]
    chosen = dice.choice(cells)
    tile = 4 if dice.random() < FOURS else 2
    return tuple(
        tuple(tile if (row, column) == chosen else board[row][column] for column in range(SIZE))
        for row in range(SIZE)
    )


@dataclass
class SlidingTiles:
    """A game. Two games of one seed begin alike, and the same moves lead to the same boards."""

    seed: str
    board: Board = EMPTY
    score: int = 0
    moves: int = 0
    illegal: bool = False
    dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.board = with_new_tile(with_new_tile(self.board, self.dice), self.dice)

    @property
    def ended(self) -> bool:
        return self.illegal or self.moves == MOST_MOVES or not legal_moves(self.board)

    @property
    def ending(self) -> str:
        """The last board and how the game ended, for people."""
        why = "out of turns" if self.moves == MOST_MOVES else "no move is legal"
        why = "illegal move" if self.illegal else why
        return f"{draw_board(self.board)}\n\nresult: {why}, score {self.score}"

    def play(self, move: str | None) -> None:
        """Makes a move. None, or a move that changes nothing, is illegal and ends the game."""
        if move is None or move not in legal_moves(self.board):
            self.illegal = True
            return
        self.board, gained = slide(self.board, move)
        self.score += gained
        self.moves += 1
        self.board = with_new_tile(self.board, self.dice)


def draw_board(board: Board) -> str:
    """Returns four rows of tiles, 0 for an empty cell."""
    return "\n".join(" ".join(map(str, row)) for row in board)


def say_board(board: Board) -> str:
    """Returns what the player reads: the board and the legal moves."""
    return f"{draw_board(board)}\nChoose {' or '.join(legal_moves(board))}"


def read_board(text: str) -> Board:
    """Returns the board of a text of `say_board`."""
    return tuple(tuple(map(int, row.split())) for row in text.splitlines()[:SIZE])


def named_move(reply: str) -> str | None:
    """Returns the move that a reply names; None unless it names exactly one."""
    named = set(re.findall(r"\b(?:left|right|up|down)\b", reply.lower()))
    return named.pop() if len(named) == 1 else None


def worth(score: int, *, illegal: bool) -> float:
    """Returns the reward of a game: a hundredth of its score, less 0.1 if an illegal move ended it."""
    return score / 100 - ILLEGAL_COSTS * illegal


def quality_of(messages: Sequence[Mapping[str, Any]]) -> float:
    """Returns how good a game is, 0 to 1, as one says who reads the boards and the moves.

    This is what the judge that runs here goes by.
    """
    score, illegal, board = 0, False, EMPTY
    for message in messages:
        if message["role"] == "user":
            board = read_board(str(message["content"]))
        elif message["role"] == "assistant":
            move = named_move(str(message["content"] or ""))
            after, gained = slide(board, move) if move is not None else (board, 0)
            illegal, score = after == board, score + gained
    return min(1.0, max(0.0, (worth(score, illegal=illegal) + ILLEGAL_COSTS) / 2))


def demonstration(number: int) -> list[dict[str, Any]]:
    """Returns a noisy demonstration. An illegal move ends nearly all of them early.

    Six of ten moves are one of the legal sides, the others any side.
    """
    game, dice = SlidingTiles(f"demonstrations/{number}"), random.Random(f"player/{number}")
    messages = [{"role": "system", "content": SYSTEM_PROMPT}]
    while not game.ended:
        move = dice.choice(legal_moves(game.board) if dice.random() < CARE else MOVES)
        messages.append({"role": "user", "content": say_board(game.board)})
        messages.append({"role": "assistant", "content": move})
        game.play(move)
    return messages


def random_player(board: Board, dice: random.Random) -> str:
    return dice.choice(MOVES)


def legal_player(board: Board, dice: random.Random) -> str:
    return dice.choice(legal_moves(board))


def greedy_player(board: Board, dice: random.Random) -> str:
    """One of the moves that score most now."""
    gains = {move: slide(board, move)[1] for move in legal_moves(board)}
    return dice.choice([move for move, gain in gains.items() if gain == max(gains.values())])


def play_scripted(player: Player, seed: str) -> SlidingTiles:
    """Returns a game of a scripted player, when it has ended."""
    game, dice = SlidingTiles(seed), random.Random(f"{seed}/player")
    while not game.ended:
        game.play(player(game.board, dice))
    return game


def reference_scores() -> dict[str, float]:
    """Returns the mean scores of scripted players in the same games."""
    players = {
        "random moves": random_player,
        "random legal moves": legal_player,
        "greedy player": greedy_player,
    }
    return {
        name: sum(play_scripted(player, f"held out/{n}").score for n in range(500)) / 500
        for name, player in players.items()
    }
