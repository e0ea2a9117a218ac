"""What your agent is asked to do. Replace these questions with your own tasks."""

from __future__ import annotations

from itertools import permutations

WORDS = ("yes", "no", "maybe")


def _questions(verb: str) -> list[str]:
    orders = permutations(WORDS)
    return [f"{verb} with {first}, {second} or {third}" for first, second, third in orders]


TRAIN = _questions("respond") + _questions("answer")
"""Scenarios that the model learns from."""

TEST = _questions("just respond")
"""Scenarios that it never learns from: they tell whether it learned more than these words."""
