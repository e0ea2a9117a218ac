"""Messages as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.messages import MessageOrChoice, Messages
    from art.trajectories import Trajectory


def format_message(message: MessageOrChoice) -> str:
    """The role, the text, and the calls: "Assistant:", what it says, "look_up({...})"; a line each.

    Parts that are no text (images) stand in brackets.
    """
    from art.trajectories import get_messages

    plain: dict[str, Any] = dict(get_messages([message])[0])
    functions = [call["function"] for call in plain.get("tool_calls") or ()]
    lines = [f"{plain['role'].capitalize()}:", _text(plain.get("content"))]
    lines += [f"{function['name']}({function['arguments']})" for function in functions]
    return "\n".join(line for line in lines if line)


def get_trajectory_messages(trajectory: Trajectory) -> Messages:
    """The main conversation as plain messages, as `trajectory.messages()` gives them."""
    return trajectory.messages()


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] if "text" in part else f"[{part.get('type', 'part')}]" for part in content)
