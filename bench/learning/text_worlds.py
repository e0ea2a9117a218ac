"""What `bench.learning.environments` trains on or shows: a text world, and a short form of a game's turns."""

from __future__ import annotations

import random
import re
from typing import Any

MOVES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
SIZE = 3


class Corners:
    """A piece on a board of three by three goes to a corner: 1 in the fewest moves, a tenth less for each
    further one, 0 for a step off the board, which ends it.
    """

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        chance = random.Random(seed)
        self.goal = (chance.choice((0, SIZE - 1)), chance.choice((0, SIZE - 1)))
        cells = [(x, y) for x in range(SIZE) for y in range(SIZE) if (x, y) != self.goal]
        self.at = chance.choice(cells)
        self.fewest = sum(abs(a - b) for a, b in zip(self.at, self.goal, strict=True))
        self.moves = 0
        return self._shown(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """A reply that is no move ends the episode, too."""
        self.moves += 1
        right, below = MOVES.get(action.strip(), (SIZE, SIZE))
        self.at = (self.at[0] + right, self.at[1] + below)
        on_board = all(0 <= place < SIZE for place in self.at)
        reached = self.at == self.goal
        reward = max(0.0, 1.0 - 0.1 * (self.moves - self.fewest)) if reached else 0.0
        shown = self._shown() if on_board else "off the board"
        return shown, reward, reached or not on_board, False, {"reached": reached, "fewest": self.fewest}

    def _shown(self) -> str:
        """The board: `X` is the piece, `O` the corner."""
        marks = {self.goal: "O", self.at: "X"}
        return "\n".join(
            " ".join(marks.get((column, line), ".") for column in range(SIZE)) for line in range(SIZE)
        )


def short_board(turn: str) -> str:
    """Returns the newest board of textarena's tic-tac-toe alone: its rules do not fit a nano model's context.

    Free cells are numbers, as in the game's own text: "0 X 2" is a row.
    """
    rows = re.findall(r"^ (\S+) \| (\S+) \| (\S+) $", turn, re.MULTILINE)[-SIZE:]
    return "\n".join(" ".join(row) for row in rows)
