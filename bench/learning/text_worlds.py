"""What `bench.learning.environments` trains on or shows: a text world, rows, a game's turns in short."""

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


NAMES = "Tom Anna Ben Mia Sam Lily Max Eva Leo Zoe".split()
THINGS = "apples books coins stamps shells pens cards keys".split()


def make_lookup_rows(count: int) -> list[dict[str, Any]]:
    """Returns rows of SkyRL's form: who has how many things, and how many one of them has. Two answered
    questions stand before each, and show the form of an answer of GSM8K.
    """
    chance = random.Random(0)

    def ask() -> tuple[str, int]:
        names, thing = chance.sample(NAMES, 3), chance.choice(THINGS)
        numbers = [chance.randint(2, 19) for _ in names]
        asked = chance.randrange(len(names))
        told = " ".join(f"{name} has {number} {thing}." for name, number in zip(names, numbers, strict=True))
        return f"{told} How many {thing} does {names[asked]} have?", numbers[asked]

    shown = [
        {"role": role, "content": text}
        for question, answer in (ask(), ask())
        for role, text in (("user", question), ("assistant", f"#### {answer}"))
    ]
    asked = [ask() for _ in range(count)]
    return [
        {
            "prompt": [*shown, {"role": "user", "content": question}],
            "reward_spec": {"ground_truth": str(answer)},
        }
        for question, answer in asked
    ]
