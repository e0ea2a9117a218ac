"""The world of codenames: words in families, boards, and the prompts of the two roles."""

from __future__ import annotations

import random
from dataclasses import dataclass

FAMILIES = {
    "color": "red blue green yellow".split(),
    "animal": "cat dog horse lion".split(),
    "fruit": "apple banana cherry grape".split(),
    "city": "paris london berlin rome".split(),
    "job": "doctor teacher farmer pilot".split(),
    "weather": "rain snow wind fog".split(),
}
FAMILY_OF = {word: family for family, words in FAMILIES.items() for word in words}
SIZE = 3


@dataclass(frozen=True)
class Board:
    """Words of different families, in the order of each player, and the one that is meant."""

    seen_by_giver: tuple[str, ...]
    seen_by_guesser: tuple[str, ...]
    secret: str

    @property
    def clues(self) -> tuple[str, ...]:
        """The clues that the giver may choose from, in an order that says nothing."""
        families = [FAMILY_OF[word] for word in self.seen_by_giver]
        return tuple(random.Random(repr(self)).sample(families, SIZE))

    @property
    def ask_giver(self) -> str:
        return f"Give a hint for {self.secret}: {', '.join(self.clues)}?"

    def ask_guesser(self, clue: str) -> str:
        return f"The hint is {clue}. Choose one: {', '.join(self.seen_by_guesser)}"


def draw_board(stream: str, number: int) -> Board:
    """Returns board `number` of a stream."""
    dice = random.Random(f"{stream}/{number}")
    words = [dice.choice(FAMILIES[family]) for family in dice.sample(sorted(FAMILIES), SIZE)]
    return Board(tuple(words), tuple(dice.sample(words, SIZE)), dice.choice(words))


CARE = 0.4
"""How often a demonstrator thinks; otherwise he chooses at random."""


def noisy_play(number: int) -> list[list[dict[str, str]]]:
    """Returns the two conversations of a board on which each player thinks of the families now and then."""
    board, dice = draw_board("careless play", number), random.Random(f"player/{number}")
    clue = FAMILY_OF[board.secret] if dice.random() < CARE else dice.choice(board.clues)
    meant = next(word for word in board.seen_by_guesser if FAMILY_OF[word] == clue)
    guess = meant if dice.random() < CARE else dice.choice(board.seen_by_guesser)
    return [
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]
        for prompt, reply in ((board.ask_giver, clue), (board.ask_guesser(clue), guess))
    ]


def reference_scores() -> dict[str, float]:
    """Returns the share of right guesses of the demonstrations."""
    games = 2000
    right = sum(
        noisy_play(number)[1][1]["content"] == draw_board("careless play", number).secret
        for number in range(games)
    )
    return {"the demonstrations": right / games}
