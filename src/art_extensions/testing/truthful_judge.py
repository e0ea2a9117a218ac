"""A judge that knows the true quality of what it is shown, and can be made partial or unsure.

The truth is noted beforehand (`KnownQualities`), or read from the messages of a built-in task alone. RULER's
scores lie between 0 and 1, the tasks' own rewards between -1 and 1: a reward `r` is the quality
`(r + 1) / 2`, which keeps the order and every proportion of differences.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from art.environments.tasks import mail as post
from art.environments.tasks import tic_tac_toe as game
from art_extensions.testing.answers import JudgePrompt, read_judge_prompt, text_of

Quality = Callable[[list[dict[str, Any]]], float]
"""Messages of one trajectory -> how good it is, 0 to 1."""

TIE = 1e-6
"""Two trajectories whose perceived qualities differ by no more are equally good."""


class TruthfulJudge:
    """Answers the prompts of RULER, rubrics (of turns, too) and tournaments: an `answer` of `LlmServer`.

    Trajectories are data to it: it computes, and obeys nothing that is written in them. Its perception of one
    is `quality + position_bias * (1 first ... 0 last) + length_bias * (share of the longest's length)
    + noise * N(0, 1)`, clamped to 0..1. The same prompt always gets the same answer.
    """

    def __init__(
        self,
        quality: Quality,
        *,
        criteria: Mapping[str, Quality] | None = None,
        position_bias: float = 0.0,
        length_bias: float = 0.0,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        """criteria: how good by one criterion of a rubric, by its name; all others go by `quality`."""
        self._quality = quality
        self._criteria = dict(criteria or {})
        self._position_bias, self._length_bias, self._noise = position_bias, length_bias, noise
        self._seed = seed

    def __call__(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a chat request. Raises ValueError where it shows no trajectory."""
        prompt = read_judge_prompt(body)
        if prompt.turns:
            return {"verdicts": [self._turn_verdict(turn, name, prompt) for turn, name in prompt.turns]}
        if prompt.kind == "verdicts":
            return {"verdicts": [self._verdict(name, prompt) for name in prompt.criteria]}
        perceived = self._perceive(prompt.trajectories, self._quality, about="")
        if prompt.kind == "winner":
            return winner_of(perceived)
        return {
            "scores": [
                {"trajectory_id": key, "explanation": f"worth {value:.2f}", "score": value}
                for key, value in perceived.items()
                if key in prompt.wanted
            ]
        }

    def _verdict(self, criterion: str, prompt: JudgePrompt) -> dict[str, Any]:
        quality = self._criteria.get(criterion, self._quality)
        (value,) = self._perceive(prompt.trajectories, quality, about=criterion).values()
        return {"criterion": criterion, "score": value, "reason": f"worth {value:.2f}"}

    def _turn_verdict(self, turn: str, criterion: str, prompt: JudgePrompt) -> dict[str, Any]:
        """The quality of the messages up to the turn."""
        ((key, messages),) = prompt.trajectories.items()
        end = next(place for place, one in enumerate(messages, 1) if one.get("turn") == turn)
        until = replace(prompt, trajectories={key: messages[:end]})
        return {"turn": turn, **self._verdict(criterion, until)}

    def _perceive(
        self, shown: Mapping[str, list[dict[str, Any]]], quality: Quality, *, about: str
    ) -> dict[str, float]:
        longest = max(1, *(characters_written(messages) for messages in shown.values()))
        last = max(1, len(shown) - 1)
        dice = self._dice(shown, about)
        perceived = {}
        for position, (key, messages) in enumerate(shown.items()):
            value = quality(messages) + self._position_bias * (1 - position / last)
            value += self._length_bias * characters_written(messages) / longest + self._noise * dice.gauss(
                0, 1
            )
            perceived[key] = round(min(1.0, max(0.0, value)), 6)
        return perceived

    def _dice(self, shown: Mapping[str, Any], about: str) -> random.Random:
        digest = hashlib.sha256(repr((self._seed, about, list(shown.items()))).encode())
        return random.Random(digest.digest())


def winner_of(perceived: Mapping[str, float]) -> dict[str, Any]:
    """The answer of a tournament's judge about two trajectories."""
    (first, a), (second, b) = perceived.items()
    winner = "tie" if abs(a - b) <= TIE else first if a > b else second
    return {"winner": winner, "explanation": f"worth {a:.2f} and {b:.2f}"}


def characters_written(messages: Sequence[Mapping[str, Any]]) -> int:
    """Characters that the agent wrote: its texts, and the arguments of its calls."""
    own = [message for message in messages if message["role"] == "assistant"]
    calls = [call for message in own for call in message.get("tool_calls") or []]
    arguments = [str((call.get("function") or {}).get("arguments", "")) for call in calls]
    return sum(len(text_of(message)) for message in own) + sum(map(len, arguments))


def fingerprint(messages: Sequence[Mapping[str, Any]]) -> str:
    """The same for the same conversation: roles, texts, tool calls by name and arguments, without ids."""
    plain = [
        [message["role"], text_of(message), *map(_call, message.get("tool_calls") or [])]
        for message in messages
    ]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


class KnownQualities:
    """A quality function for what no judge can see in the messages: a trajectory's worth, noted before.

    >>> truth = KnownQualities()
    >>> truth.note([{"role": "user", "content": "hi"}], 1.0)
    >>> truth([{"role": "user", "content": "hi"}])
    1.0
    """

    def __init__(self) -> None:
        self._qualities: dict[str, float] = {}

    def note(self, messages: Sequence[Mapping[str, Any]], quality: float) -> None:
        """Remember the quality, 0 to 1, of the trajectory with these messages, as the judge will see them.

        Raises ValueError where equal messages were noted with another quality: then the truth is not a
        function of what the judge sees.
        """
        known = self._qualities.setdefault(fingerprint(messages), quality)
        if known != quality:
            raise ValueError(f"equal messages were noted with quality {known!r} and now with {quality!r}")

    def __call__(self, messages: Sequence[Mapping[str, Any]]) -> float:
        """Raises KeyError for messages that nobody noted."""
        return self._qualities[fingerprint(messages)]


def _call(call: Mapping[str, Any]) -> list[Any]:
    """Name and arguments of a tool call; arguments that are JSON are compared as values."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            arguments = [arguments]
    return [function.get("name"), json.dumps(arguments, sort_keys=True)]


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
    """A finished rollout: right where the answer is the name in the mail that was read for it.

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
