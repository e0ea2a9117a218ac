"""A judge that knows the true quality of what it is shown, and can be made partial or unsure."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from art.testing.prompt import JudgePrompt, read_judge_prompt, text_of

Quality = Callable[[list[dict[str, Any]]], float]
"""Messages of one trajectory -> how good it is, 0 to 1."""

TIE = 1e-6
"""Two trajectories whose perceived qualities differ by no more are equally good."""


class TruthfulJudge:
    """Answers the prompts of RULER, rubrics and tournaments: an `answer` of `LlmServer`.

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

    def _perceive(
        self, shown: Mapping[str, list[dict[str, Any]]], quality: Quality, *, about: str
    ) -> dict[str, float]:
        longest = max(1, *(written(messages) for messages in shown.values()))
        last = max(1, len(shown) - 1)
        dice = self._dice(shown, about)
        perceived = {}
        for position, (key, messages) in enumerate(shown.items()):
            value = quality(messages) + self._position_bias * (1 - position / last)
            value += self._length_bias * written(messages) / longest + self._noise * dice.gauss(0, 1)
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


def written(messages: Sequence[Mapping[str, Any]]) -> int:
    """Characters that the agent wrote: its texts, and the arguments of its calls."""
    own = [message for message in messages if message["role"] == "assistant"]
    calls = [call for message in own for call in message.get("tool_calls") or []]
    arguments = [str((call.get("function") or {}).get("arguments", "")) for call in calls]
    return sum(len(text_of(message)) for message in own) + sum(map(len, arguments))
