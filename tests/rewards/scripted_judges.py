"""Groups whose attempts say how good they are, and judges that answer by a script, over real HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import art
from art.rewards.ruler import Ruler
from art_extensions.testing import LlmServer

QUESTION: dict[str, Any] = {"role": "user", "content": "Say how good you are."}
BLOCK = re.compile(r'<trajectory id="([a-z]{6})">\n(.*?)\n</trajectory>', re.S)

Script = Callable[[dict[str, float]], Any]
"""True scores of the ids that are asked about -> the answer."""


def attempt(*said: Any, **fields: Any) -> art.Trajectory:
    """A trajectory; its last message says its quality."""
    turns = [{"role": "assistant", "content": str(text)} for text in said]
    return art.Trajectory(messages_and_choices=[QUESTION, *turns], **fields)


def group_of(*qualities: float) -> art.TrajectoryGroup:
    return art.TrajectoryGroup(attempt(quality) for quality in qualities)


def user_text(body: Mapping[str, Any]) -> str:
    return next(m["content"] for m in body["messages"] if m["role"] == "user")


def shown(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the judge sees of each, by id, in the order shown."""
    return {identity: json.loads(data) for identity, data in BLOCK.findall(user_text(body))}


def wanted(body: Mapping[str, Any]) -> list[str]:
    """The ids that the answer may name."""
    schema = body["response_format"]["json_schema"]["schema"]
    ids: list[str] = schema["properties"]["scores"]["items"]["properties"]["trajectory_id"]["enum"]
    return ids


def truth(body: Mapping[str, Any]) -> dict[str, float]:
    """The true scores of the ids that are asked about."""
    return {i: float(messages[-1]["content"]) for i, messages in shown(body).items() if i in wanted(body)}


def entries(scores: Mapping[str, Any]) -> dict[str, Any]:
    """A well-formed answer."""
    return {
        "scores": [{"trajectory_id": i, "explanation": f"I give {s}", "score": s} for i, s in scores.items()]
    }


def scripted(*script: Script) -> Callable[[Mapping[str, Any]], Any]:
    """A judge that follows the script, one entry a question, then answers truthfully."""
    waiting = list(script)

    def answer(body: Mapping[str, Any]) -> Any:
        return (waiting.pop(0) if waiting else entries)(truth(body))

    return answer


def ruler_at(server: LlmServer, **options: Any) -> Ruler:
    return Ruler("truth", base_url=server.base_url, api_key=server.key, **{"cache": False, **options})


def rewards(group: art.TrajectoryGroup) -> list[Any]:
    """Numbers, and None for what is unscored."""
    return [None if isinstance(t.reward, art.Unscored) else t.reward for t in group]


def reasons(group: art.TrajectoryGroup) -> list[str]:
    return [t.reward.reason for t in group if isinstance(t.reward, art.Unscored)]
