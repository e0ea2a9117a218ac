"""The world of Temporal Clue: who was in which room at which time, told by clues that leave one solution."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

PEOPLE = tuple("alice bob carol dave emma frank grace henry iris jack kate leo maria nina".split())
ROOMS = tuple("house garden river forest beach island mountain valley road bridge".split())
TIMES = ("Monday", "Tuesday")
SIZE = 3
"""People in a puzzle, and rooms: at each time everybody is in a room of his own."""
QUESTIONS = 3
INDIRECT = 0.5
"""How often a clue is tried to be told by another person's room."""

Solution = Mapping[str, Mapping[str, str]]
"""Time -> person -> room."""


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


@dataclass(frozen=True)
class Clue:
    """A person was in a room at a time; or at a time where another one was at the other time."""

    person: str
    time: str
    room: str | None = None
    other: tuple[str, str] | None = None
    """Person and time."""

    def holds(self, solution: Solution) -> bool:
        room = self.room if self.other is None else solution[self.other[1]][self.other[0]]
        return solution[self.time][self.person] == room

    def answers(self, question: str) -> bool:
        """Returns whether the clue says the answer in so many words."""
        asked = words_of(question)
        return self.room is not None and {self.time, self.person} <= asked

    def __str__(self) -> str:
        where = self.room if self.other is None else "where {1} {0}".format(*self.other)
        return f"{self.time} {self.person} {where}"


@dataclass(frozen=True)
class Puzzle:
    """The people and rooms, the clues, and questions with their answers."""

    people: tuple[str, ...]
    rooms: tuple[str, ...]
    clues: tuple[Clue, ...]
    questions: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def prompt(self) -> str:
        world = f"people: {', '.join(self.people)}\nrooms: {', '.join(self.rooms)}"
        return "\n".join((world, *map(str, self.clues), f"Where? {', '.join(self.questions)}"))

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    def score(self, reply: str) -> float:
        """Returns the share of questions that a reply answers right: answers in order, with commas."""
        said = [" ".join(re.findall(r"\w+", one)) for one in reply.split(",")]
        if len(said) != len(self.answers):
            return 0.0
        right = map(" ".join, zip(self.questions, self.answers, strict=True))
        return sum(one == other for one, other in zip(said, right, strict=True)) / len(said)


def solutions(people: Sequence[str], rooms: Sequence[str], clues: Sequence[Clue]) -> list[Solution]:
    """Returns every solution in which all clues hold."""
    ways = [dict(zip(people, order, strict=True)) for order in permutations(rooms)]
    worlds = (dict(zip(TIMES, chosen, strict=True)) for chosen in product(ways, repeat=len(TIMES)))
    return [world for world in worlds if all(clue.holds(world) for clue in clues)]


def draw_puzzle(stream: str, number: int) -> Puzzle:
    """Returns puzzle `number` of a stream. At one time one person is in no clue."""
    dice = random.Random(f"{stream}/{number}")
    people, rooms = tuple(dice.sample(PEOPLE, SIZE)), tuple(dice.sample(ROOMS, SIZE))
    truth = {
        time: dict(zip(people, order, strict=True))
        for time, order in ((time, dice.sample(rooms, SIZE)) for time in TIMES)
    }
    clues = [Clue(who, time, room) for time in TIMES for who, room in truth[time].items()]
    clues.remove(dice.choice(clues))
    if dice.random() < INDIRECT:
        changed = dice.choice(clues)
        earlier = TIMES[1 - TIMES.index(changed.time)]
        same = next(who for who, room in truth[earlier].items() if room == changed.room)
        if any((one.person, one.time) == (same, earlier) for one in clues):
            clues[clues.index(changed)] = Clue(changed.person, changed.time, other=(same, earlier))
    dice.shuffle(clues)
    asked = [(f"{day} {who}", room) for day, places in truth.items() for who, room in places.items()]
    questions, answers = zip(*dice.sample(asked, QUESTIONS), strict=True)
    return Puzzle(people, rooms, tuple(clues), questions, answers)


def noisy_answers(number: int, right: float) -> list[dict[str, str]]:
    """Returns a conversation of somebody who guesses, but for a share `right` of the questions."""
    puzzle = draw_puzzle("careless", number)
    dice = random.Random(f"guesses/{number}")
    said = [
        f"{question} {answer if dice.random() < right else dice.choice(puzzle.rooms)}"
        for question, answer in zip(puzzle.questions, puzzle.answers, strict=True)
    ]
    return [*puzzle.messages, {"role": "assistant", "content": ", ".join(said)}]


def reference_scores() -> dict[str, float]:
    """Returns the share of right answers of who guesses among the three, and of who reads direct clues."""
    puzzles = [draw_puzzle("held out", number) for number in range(300)]
    told = [
        any(clue.answers(question) for clue in puzzle.clues)
        for puzzle in puzzles
        for question in puzzle.questions
    ]
    share = sum(told) / len(told)
    return {"a guess": 1 / SIZE, "reads, and guesses the rest": share + (1 - share) / SIZE}
