"""A game of numbers: somebody has one in mind, and says of each guess whether it is higher or lower.

Games are drawn, and each is of one split: a number in a range of "val" is never trained on. Who halves the
range finds any number up to 30 within five guesses.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
SCORE = "found"
MAX_TOKENS = 6
TURNS = 6
NUMBER = re.compile(r"\d{1,3}", re.A)


@dataclass(frozen=True, kw_only=True)
class SecretNumber:
    """What the other side has in mind."""

    secret: int
    top: int
    """The number lies between 1 and this one."""

    @property
    def question(self) -> str:
        return f"Guess my number from 1 to {self.top}. Reply with one number."

    def hint(self, guess: int) -> str:
        """What the other side says to a wrong guess."""
        return f"My number is {'higher' if guess < self.secret else 'lower'} than {guess}."


def draw_number(split: str, index: int) -> SecretNumber:
    """The game at `index` of a split, "train" or "val"; one number of five in each range is of "val"."""
    dice = random.Random(f"number/{split}/{index}")
    while True:
        top = dice.randint(10, 30)
        secret = dice.randint(1, top)
        if ((3 * top + secret) % 5 == 0) == (split == "val"):
            return SecretNumber(secret=secret, top=top)


def earlier_game(top: int, *guesses: int) -> list[Message]:
    """A game that was played before; the last guess is right."""
    game = SecretNumber(secret=guesses[-1], top=top)
    messages: list[Message] = [{"role": "user", "content": game.question}]
    for guess in guesses:
        answer = "Right!" if guess == game.secret else game.hint(guess)
        messages += [{"role": "assistant", "content": str(guess)}, {"role": "user", "content": answer}]
    return messages


PROMPTS = ("one game before", "the rules alone", "two games before")
"""Ways to ask, the first of which is trained."""
GAMES = (((18, 14, 3, 8),), (), ((18, 14, 3, 8), (25, 6, 18, 12, 15)))
"""What was played before: the top of the range, and guesses that fit the hints and show no strategy."""


class NumberWorld:
    """One game. Reward: 1 for the number, less a twentieth for each guess before it; 0 where it is not found,
    or a reply is no number.
    """

    tools: list[dict[str, Any]] | None = None

    def __init__(self, game: SecretNumber, prompt: int = 0) -> None:
        self.game = game
        self.opening: list[Message] = []
        for guesses in GAMES[prompt]:
            self.opening += earlier_game(*guesses)
        self.opening = joined([*self.opening, {"role": "user", "content": game.question}])
        self.guesses: list[int] = []
        self.fitting = 0
        """Guesses that no hint had ruled out."""
        self.done, self.reward = False, 0.0
        self.metrics: dict[str, float] = {}
        self.ending = ""
        self._low, self._high = 1, game.top

    def reply(self, message: Mapping[str, Any]) -> list[Message]:
        """Answers a guess with a hint, until the number is found, six guesses are made, or one is none."""
        guess = read_number(str(message.get("content") or ""))
        if guess is None:
            return self._end("invalid (the reply is no number)", malformed=True)
        self.guesses.append(guess)
        self.fitting += self._low <= guess <= self._high
        if guess == self.game.secret:
            self.reward = 1.0 - 0.05 * (len(self.guesses) - 1)
            return self._end(f"found (guess {len(self.guesses)})", found=True)
        if guess < self.game.secret:
            self._low = max(self._low, guess + 1)
        else:
            self._high = min(self._high, guess - 1)
        if len(self.guesses) == TURNS:
            return self._end(f"not found (it was {self.game.secret})")
        return [{"role": "user", "content": self.game.hint(guess)}]

    def demonstration(self) -> list[Message]:
        """Returns the game of somebody who halves the range, to its end. It ends this world."""
        messages, low, high = [*self.opening], 1, self.game.top
        while not self.done:
            guess = (low + high) // 2
            messages.append({"role": "assistant", "content": str(guess)})
            messages += self.reply(messages[-1])
            low, high = (guess + 1, high) if guess < self.game.secret else (low, guess - 1)
        return messages

    def _end(self, ending: str, *, found: bool = False, malformed: bool = False) -> list[Message]:
        self.done, self.ending = True, ending
        self.metrics = {
            "found": float(found),
            "malformed": float(malformed),
            "guesses": float(len(self.guesses)),
            "fitting": self.fitting / max(1, len(self.guesses)),
        }
        return []


def joined(messages: list[Message]) -> list[Message]:
    """Puts messages of the same side that follow each other into one: chats alternate."""
    made: list[Message] = []
    for message in messages:
        if made and made[-1]["role"] == message["role"]:
            made[-1] = {**message, "content": f"{made[-1]['content']} {message['content']}"}
        else:
            made.append(message)
    return made


def read_number(text: str) -> int | None:
    """Returns the number that a reply consists of, with a full stop or without; else None."""
    said = text.strip().removesuffix(".")
    return int(said) if NUMBER.fullmatch(said) else None
