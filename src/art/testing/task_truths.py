"""What attempts at the built-in tasks are really worth, read from the messages alone.

RULER's scores lie between 0 and 1, the tasks' own rewards between -1 and 1: a reward `r` is the quality
`(r + 1) / 2`, which keeps the order and every proportion of differences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from art.tasks import mail as post
from art.tasks import tic_tac_toe as game
from art.testing.prompt import text_of


def tic_tac_toe(messages: Sequence[Mapping[str, Any]]) -> float:
    """A finished game. Moves are read one after another, as the referee did; what is said beside them counts
    for nothing.

    The opponent's last move is not shown: a game that ended after a legal move without win or draw is lost.
    """
    board = game.EMPTY
    for message in messages:
        cell = None
        if message["role"] == "assistant":
            cell, mark = game.parse_move(text_of(message)), "X"
            if cell is None or board[cell] != ".":
                return quality_of(game.REWARDS["invalid"])
        elif message["role"] == "user" and text_of(message).startswith("O plays "):
            cell, mark = game.parse_move(text_of(message).split("\n")[0]), "O"
        if cell is not None:
            board = game.place(board, cell, mark)
    return quality_of(game.REWARDS[game.outcome(board) or "lost"])


def mail(messages: Sequence[Mapping[str, Any]]) -> float:
    """A finished attempt at a question: right where the answer is the name in the mail that was read for it.

    A name that was guessed is not known to be right, here as to any judge: it is worth a wrong one. The
    task's own reward, which knows the inbox, differs in that alone.
    """
    asked = next(text_of(message) for message in messages if message["role"] == "user")
    question = re.fullmatch(r"Who is the (\w+) of (\w+)\?", asked)
    if question is None:
        raise ValueError(f"not a question of the mail task: {asked!r}")
    known = re.compile(rf"The {question[1]} of {question[2]} is (\w+)\.")
    names: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            names |= {found[1] for found in [known.fullmatch(text_of(message))] if found}
        elif message["role"] == "assistant":
            calls = [post.parse_call(dict(call)) for call in message.get("tool_calls") or []]
            for call in calls or [None]:
                if call is None:
                    return quality_of(-1.0)
                if call[0] == "answer":
                    return quality_of(float(call[1].strip().lower() in names))
    return quality_of(0.0)


def quality_of(reward: float) -> float:
    """A reward, -1 to 1, as a quality, 0 to 1.

    >>> quality_of(0.5)
    0.75
    """
    return (reward + 1) / 2


BY_TASK = {game.NAME: tic_tac_toe, post.NAME: mail}
"""The truth of each task, by the task's name."""
