"""Tic-tac-toe: the agent plays X and moves first, against an opponent who moves at random.

Cells are named by row and column, `A1` to `C3`; index = 3 * row + column. Reward: win 1, draw 0.5, loss 0,
and -1 for a reply that is not the name of a free cell, which ends the game.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from art.environments.tasks import Message, TaskDefaults, rollouts_in

NAME = "tic-tac-toe"
TITLE = "Tic-tac-toe"
DESCRIPTION = "Play X, moving first, against an opponent who moves at random."
SCORE = "not_lost"
SCORE_LABEL = "games not lost"
DEFAULTS = TaskDefaults(
    base_model="art/nano-games",
    groups=8,
    group_size=16,
    steps=50,
    learning_rate=4e-3,
    warmup_steps=5,
    final_share=0.2,
    max_tokens=8,
)
LARGER: Mapping[str, TaskDefaults] = MappingProxyType({})

SYSTEM_PROMPT = "You play tic-tac-toe as X. Name a free cell."
CELLS = tuple(row + column for row in "ABC" for column in "123")
LINES = (
    *((0, 1, 2), (3, 4, 5), (6, 7, 8)),
    *((0, 3, 6), (1, 4, 7), (2, 5, 8)),
    *((0, 4, 8), (2, 4, 6)),
)
EMPTY = "." * 9
REWARDS = {"won": 1.0, "draw": 0.5, "lost": 0.0, "invalid": -1.0}


@dataclass(frozen=True, kw_only=True)
class TicTacToeScenario:
    """One game to be played; the boards of all scenarios start empty."""

    seed: int
    index: int


def scenario(seed: int, index: int) -> TicTacToeScenario:
    """The scenario at `index` of the stream `seed`."""
    return TicTacToeScenario(seed=seed, index=index)


def free_cells(board: str) -> list[int]:
    """Indices of the empty cells of a board of nine characters `X`, `O` and `.`."""
    return [cell for cell, mark in enumerate(board) if mark == "."]


def place(board: str, cell: int, mark: str) -> str:
    """The board after `mark` was put on `cell`."""
    return board[:cell] + mark + board[cell + 1 :]


def winner(board: str) -> str | None:
    """`X` or `O` if one of them has three in a line, else None."""
    for a, b, c in LINES:
        if board[a] != "." and board[a] == board[b] == board[c]:
            return board[a]
    return None


def outcome(board: str) -> str | None:
    """`won`, `lost` or `draw` from the view of X; None while the game goes on."""
    won_by = winner(board)
    if won_by:
        return "won" if won_by == "X" else "lost"
    return None if "." in board else "draw"


def draw_board(board: str) -> str:
    """The board as the player sees it: a heading and three rows."""
    rows = (f"{name} {' '.join(board[3 * i : 3 * i + 3])}" for i, name in enumerate("ABC"))
    return "\n".join(("  1 2 3", *rows))


def parse_move(text: str) -> int | None:
    """The cell that a reply names, or None unless it names exactly one."""
    named = re.findall(r"\b[ABC][123]\b", text)
    return CELLS.index(named[0]) if len(named) == 1 else None


class TicTacToe:
    """One game. The opponent moves with `random.Random(seed)`; None seeds it from the operating system."""

    tools: list[dict[str, Any]] | None = None

    def __init__(self, seed: int | str | None = None) -> None:
        self.board = EMPTY
        self.done = False
        self.reward = 0.0
        self.metrics: dict[str, float] = {}
        self.ending = ""
        self.opening: list[Message] = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": draw_board(EMPTY)},
        ]
        self._random = random.Random(seed)

    def reply(self, message: Message) -> list[Message]:
        """Play the agent's move and the opponent's; the answer shows both on the board."""
        cell = parse_move(message.get("content") or "")
        if cell is None or self.board[cell] != ".":
            return self._end("invalid")
        self.board = place(self.board, cell, "X")
        if ended := outcome(self.board):
            return self._end(ended)
        answer = self._random.choice(free_cells(self.board))
        self.board = place(self.board, answer, "O")
        if ended := outcome(self.board):
            return self._end(ended, f" (O plays {CELLS[answer]})")
        return [{"role": "user", "content": f"O plays {CELLS[answer]}\n{draw_board(self.board)}"}]

    def _end(self, ended: str, last_move: str = "") -> list[Message]:
        self.done, self.ending = True, ended + last_move
        self.reward = REWARDS[ended]
        self.metrics = {key: float(ended == key) for key in ("won", "draw", "invalid")}
        self.metrics["not_lost"] = float(ended in ("won", "draw"))
        return []


def environment(scenario: TicTacToeScenario, seed: int | None = None) -> TicTacToe:
    """A new game of `scenario`; rollouts with different seeds meet different opponents."""
    return TicTacToe(None if seed is None else f"{NAME}/{scenario.seed}/{scenario.index}/{seed}")


def show(messages: Sequence[Mapping[str, Any]], ending: str = "") -> str:
    """The game as moves in order, the last board and the result, for people.

    A game that O won ends with a move of O that is in no message, only in `ending`.
    """
    board, moves = EMPTY, []
    last_move = {"role": "user", "content": ending.partition("(")[2]}
    for message in (*messages, last_move):
        text = message.get("content") or ""
        if message["role"] == "assistant":
            cell = parse_move(text)
            moves.append(f"X {text.strip()!r}" if cell is None else f"X {CELLS[cell]}")
            if cell is None or board[cell] != ".":
                moves.append("not a free cell")
                break
            board = place(board, cell, "X")
        elif message["role"] == "user" and (named := re.match(r"O plays ([ABC][123])", text)):
            moves.append(f"O {named[1]}")
            board = place(board, CELLS.index(named[1]), "O")
    result = ending.partition(" (")[0] or outcome(board) or "not finished"
    return "\n".join((", ".join(moves), draw_board(board), f"result: {result}"))


rollout = rollouts_in(environment, name=NAME, most=DEFAULTS.max_tokens, show=show)
