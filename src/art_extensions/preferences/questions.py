"""The question of a reward model, and the conversations that ask it.

Behind a conversation stands the question, and the model's answer is one of two digits, each one token in any
vocabulary. score = log p("1") - log p("0"): the last hidden state times the difference of two rows of the
output layer. So the head is linear and fixed, and the adapter learns all that leads to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from art.wire.jobs import SftConversation

QUESTION = "Is this good? Answer 1 for yes, 0 for no."
GOOD, BAD = "1", "0"


def question_behind(messages: Sequence[Mapping[str, Any]], question: str) -> list[dict[str, Any]]:
    """A conversation, as context, with the question behind it."""
    context = [{**one, "weight": 0} if one["role"] == "assistant" else dict(one) for one in messages]
    return [*context, {"role": "user", "content": question}]


def asked_conversations(conversation: SftConversation, question: str) -> list[SftConversation]:
    """The conversation with the question and each of the two answers, the good one first."""
    asked = question_behind(conversation.messages, question)
    return [
        SftConversation(
            name=f"{conversation.name}, answer {answer}",
            messages=[*asked, {"role": "assistant", "content": answer}],
            tools=conversation.tools,
            samples=conversation.samples,
        )
        for answer in (GOOD, BAD)
    ]


def score_of(logprobs: Mapping[str, float]) -> float | None:
    """The score from the logprobs of both answers; None where one is missing or not finite.

    >>> score_of({"1": -0.5, "0": -1.5})
    1.0
    """
    if GOOD not in logprobs or BAD not in logprobs:
        return None
    score = logprobs[GOOD] - logprobs[BAD]
    return score if math.isfinite(score) else None
