"""One endpoint that is both judge and generator, as real models are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from art.testing.prompt import TRAJECTORY, text_of

Answer = Callable[[Mapping[str, Any]], Any]
"""Body of a chat request -> the content of the reply: a text, or anything that becomes JSON."""


def either(*, judge: Answer, generator: Answer) -> Answer:
    """`judge` answers what shows trajectories, `generator` all else."""

    def answer(body: Mapping[str, Any]) -> Any:
        shows = any(TRAJECTORY.search(text_of(message)) for message in body["messages"])
        return judge(body) if shows else generator(body)

    return answer
