"""Trajectories as a judge is shown them: plain messages, long tool outputs digested.

Left out are logprobs, token ids and the ids of messages. Ids of tool calls are numbered, so that equal turns
of two trajectories are equal. Images, sounds and files become a line that names their kind, size and SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from art.rewards.judging.plain import fingerprint, plain, plain_key
from art.rewards.judging.view import View
from art.trajectories import Trajectory, TrajectoryGroup
from art.turns import get_messages

DIGEST_CHARS = 4000
"""Tool outputs of more characters are shown by their head and tail."""
_OURS = frozenset(
    {"logprobs", "token_ids", "prompt_token_ids", "sample_id", "id", "provider_specific_fields"}
)
_TOOL_ROLES = frozenset({"tool", "function"})
_TEXTS = frozenset({"text", "input_text", "output_text", "refusal"})


def views_of(group: TrajectoryGroup, *, digest_chars: int = DIGEST_CHARS) -> list[View]:
    """A view of each trajectory, further histories included, in the group's order."""
    return [trajectory_view(trajectory, digest_chars=digest_chars) for trajectory in group.trajectories]


def trajectory_view(trajectory: Trajectory, *, digest_chars: int = DIGEST_CHARS) -> View:
    """What a judge sees of one trajectory: never its reward, metrics, metadata or logs."""
    conversations = [
        trajectory.messages_and_choices,
        *(h.messages_and_choices for h in trajectory.additional_histories),
    ]
    return view_of(conversations, tools=trajectory.tools or (), digest_chars=digest_chars)


def view_of(
    conversations: Sequence[Iterable[Any]], *, tools: Iterable[Any] = (), digest_chars: int = DIGEST_CHARS
) -> View:
    """A view of conversations (messages or choices): the main one first, then further histories."""
    shown = tuple(_conversation(list(items), digest_chars) for items in conversations)
    return View(
        conversations=shown,
        tools=tuple(plain(tool) for tool in tools),
        length=sum(_written(message) for messages in shown for message in messages),
    )


def shortened(view: View, digest_chars: int) -> View:
    """The view with its tool outputs digested further; what the agent itself said stays whole."""
    return replace(
        view,
        conversations=tuple(
            tuple(_digested(message, digest_chars) for message in messages) for messages in view.conversations
        ),
    )


def digest(text: str, chars: int) -> str:
    """Head and tail of a text of more than `chars` characters, with what was left out; equal texts have equal
    digests, different ones differ in the SHA-256.
    """
    if len(text) <= chars:
        return text
    head, tail = chars * 2 // 3, chars - chars * 2 // 3
    left_out = f"[... {len(text) - chars} of {len(text)} characters left out, sha256 {fingerprint(text)} ...]"
    return f"{text[:head]}\n{left_out}\n{text[len(text) - tail :]}"


def _conversation(items: list[Any], digest_chars: int) -> tuple[dict[str, Any], ...]:
    names: dict[str, str] = {}
    messages: list[Any] = list(get_messages(items))
    return tuple(_digested(_message(message, names), digest_chars) for message in messages)


def _message(message: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """names: what the ids of tool calls met so far are called."""
    shown = {
        plain_key(key): plain(value)
        for key, value in message.items()
        if key not in _OURS and value is not None
    }
    if isinstance(message.get("content"), list | tuple):
        shown["content"] = [_part(part) for part in message["content"]]
    if isinstance(shown.get("tool_calls"), list):
        shown["tool_calls"] = [_call(call, names) for call in shown["tool_calls"]]
    if "tool_call_id" in shown:
        shown["tool_call_id"] = _renamed(shown["tool_call_id"], names)
    return shown


def _call(call: Any, names: dict[str, str]) -> Any:
    return {**call, "id": _renamed(call["id"], names)} if isinstance(call, dict) and "id" in call else call


def _renamed(identity: Any, names: dict[str, str]) -> str:
    return names.setdefault(str(identity), f"call_{len(names) + 1}")


def _part(part: Any) -> Any:
    """A part of a content: texts stay, everything else is named."""
    shown = plain(part)
    if not isinstance(shown, dict) or shown.get("type") in _TEXTS:
        return shown
    kind = str(shown.get("type", "part"))
    inner = shown.get(kind)
    source = (
        inner.get("url") or inner.get("data") or inner.get("file_data") if isinstance(inner, dict) else inner
    )
    what = "" if source is None else f", {len(str(source))} characters, sha256 {fingerprint(str(source))}"
    return {"type": "text", "text": f"[{kind}{what}]"}


def _digested(message: dict[str, Any], chars: int) -> dict[str, Any]:
    if message.get("role") not in _TOOL_ROLES:
        return message
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": digest(content, chars)}
    if isinstance(content, list):
        return {**message, "content": [_digested_part(part, chars) for part in content]}
    return message


def _digested_part(part: Any, chars: int) -> Any:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {**part, "text": digest(part["text"], chars)}
    return part


def _written(message: dict[str, Any]) -> int:
    """Characters of an assistant's message: its text, and the arguments of its calls."""
    if message.get("role") != "assistant":
        return 0
    content = message.get("content") or ""
    listed = content if isinstance(content, list) else []
    texts = [content] if isinstance(content, str) else []
    parts = [*texts, *(str(part.get("text", "")) for part in listed if isinstance(part, dict))]
    made = message.get("tool_calls")
    calls = [
        call["function"]
        for call in (made if isinstance(made, list) else ())
        if isinstance(call, dict) and "function" in call
    ]
    arguments = [str(call.get("arguments", "")) for call in calls if isinstance(call, dict)]
    return sum(map(len, [*parts, *arguments]))
