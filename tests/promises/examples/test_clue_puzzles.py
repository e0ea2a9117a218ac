"""The puzzles of Temporal Clue: one solution, the answers in it, and how a reply is scored."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

FOLDER = Path(__file__).parents[3] / "examples" / "temporal_clue"
NUMBERS = st.integers(0, 10**6)


@pytest.fixture(scope="module")
def puzzles() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        import clue_puzzles

    return clue_puzzles


@given(number=NUMBERS)
def test_the_clues_leave_one_solution_and_it_has_the_answers(puzzles: ModuleType, number: int) -> None:
    puzzle = puzzles.draw_puzzle("any", number)
    (solution,) = puzzles.solutions(puzzle.people, puzzle.rooms, puzzle.clues)
    for question, answer in zip(puzzle.questions, puzzle.answers, strict=True):
        day, who = question.split()
        assert solution[day][who] == answer


@given(number=NUMBERS)
def test_a_clue_that_answers_a_question_has_the_answer(puzzles: ModuleType, number: int) -> None:
    puzzle = puzzles.draw_puzzle("any", number)
    for question, answer in zip(puzzle.questions, puzzle.answers, strict=True):
        for clue in puzzle.clues:
            if clue.answers(question):
                assert answer in puzzles.words_of(str(clue))


def test_a_reply_is_scored_question_by_question(puzzles: ModuleType) -> None:
    puzzle = puzzles.draw_puzzle("any", 1)
    said = list(map(" ".join, zip(puzzle.questions, puzzle.answers, strict=True)))
    right = ", ".join(said)
    assert puzzle.score(right) == puzzle.score(f"{right}.") == 1
    assert puzzle.score(", ".join([said[0], *("nobody" for _ in said[1:])])) == pytest.approx(1 / 3)
    assert puzzle.score(", ".join(reversed(said))) < 1
    assert puzzle.score(said[0]) == puzzle.score("") == puzzle.score(f"{right}, {said[0]}") == 0


def test_puzzles_of_two_streams_differ_and_some_clues_are_indirect(puzzles: ModuleType) -> None:
    train = [puzzles.draw_puzzle("train 0", number) for number in range(300)]
    held_out = {puzzles.draw_puzzle("held out", number).prompt for number in range(256)}
    assert held_out.isdisjoint(puzzle.prompt for puzzle in train)
    indirect = sum(any(clue.other for clue in puzzle.clues) for puzzle in train)
    assert 30 < indirect < 270


def test_the_demonstrations_are_noisy(puzzles: ModuleType) -> None:
    def share(right: float) -> float:
        scores = [
            puzzles.draw_puzzle("careless", n).score(puzzles.noisy_answers(n, right)[-1]["content"])
            for n in range(200)
        ]
        return sum(scores) / len(scores)

    assert share(1.0) == 1 and 0.25 < share(0.0) < 0.42
