"""What a judge is asked, read back from the prompt: the trajectories, and which kind of answer is wanted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["scores", "verdicts", "winner"]
KINDS: tuple[Kind, ...] = ("scores", "verdicts", "winner")
TRAJECTORY = re.compile(r'<trajectory id="([^"]+)">\n(.*?)\n</trajectory>', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class JudgePrompt:
    """One question to a judge."""

    kind: Kind
    trajectories: dict[str, list[dict[str, Any]]]
    """By id, in the order shown: the shared beginning, the rest, then further histories, as one list."""
    wanted: frozenset[str]
    """Ids of those that are asked about: all, or what stands under <scores_needed>."""
    criteria: tuple[str, ...] = ()
    """Names of what is to be judged, in a rubric's question."""


def read_judge_prompt(body: Mapping[str, Any]) -> JudgePrompt:
    """Read a chat request. Raises ValueError where it shows no trajectory."""
    texts = [(message["role"], text_of(message)) for message in body["messages"]]
    shown = next((text for role, text in texts if role == "user" and TRAJECTORY.search(text)), None)
    if shown is None:
        raise ValueError(
            'this judge is asked about no trajectory: no <trajectory id="..."> in a user message'
        )
    instructions = "\n".join(text for role, text in texts if role == "system")
    outside = TRAJECTORY.sub("", shown)
    shared = _block("context", outside) or []
    criteria = _block("criteria", outside) or _block("criteria", instructions) or []
    trajectories = {key: [*shared, *_messages(json.loads(data))] for key, data in TRAJECTORY.findall(shown)}
    needed = _block("scores_needed", outside)
    return JudgePrompt(
        kind=_kind(body, instructions, has_criteria=bool(criteria)),
        trajectories=trajectories,
        wanted=frozenset(trajectories if needed is None else (one["trajectory_id"] for one in needed)),
        criteria=tuple(str(one["name"]) for one in criteria),
    )


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, whether its content is a text or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)


def asked_properties(body: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of the JSON schema that the answer must keep to; empty where none is given.

    It stands in `response_format`, or where that is not understood, after "JSON schema:" in the instructions.
    """
    schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
    for message in body["messages"]:
        if schema is None and message["role"] == "system":
            _, _, text = text_of(message).rpartition("JSON schema:\n")
            schema = json.JSONDecoder().raw_decode(text)[0] if text.startswith("{") else None
    return dict((schema or {}).get("properties") or {})


def _messages(data: Any) -> list[dict[str, Any]]:
    if isinstance(data, list):
        return data
    return [*data["messages"], *(message for history in data["additional_histories"] for message in history)]


def _block(name: str, text: str) -> list[dict[str, Any]] | None:
    found = re.search(rf"<{name}>\n(.*?)\n</{name}>", text, re.DOTALL)
    return json.loads(found[1]) if found else None


def _kind(body: Mapping[str, Any], instructions: str, *, has_criteria: bool) -> Kind:
    """By the schema; an endpoint without schemas has only the instructions to go by."""
    asked = asked_properties(body)
    for kind in KINDS:
        if kind in asked:
            return kind
    if has_criteria:
        return "verdicts"
    return "winner" if '"winner"' in instructions else "scores"
