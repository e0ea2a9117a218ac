"""An environment of verifiers 0.1 whose question has an image."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset


def load_environment(image: str) -> Any:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": image}}]
    rows = [
        {"prompt": [{"role": "user", "content": parts}], "answer": answer} for answer in ("a door", "a room")
    ]
    rubric = vf.Rubric(funcs=[right])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric)


def right(completion: list[dict[str, Any]], answer: str) -> float:
    return float(completion[-1]["content"] == answer)
