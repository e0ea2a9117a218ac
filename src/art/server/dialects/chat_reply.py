"""What a chat completion answers: choices with the identity of their samples, and chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from art.engine.protocol import FinishReason, TopLogprobs
from art.rendering.chat import ChatRenderer, Parsed
from art.server.dialects.chat_messages import call_id
from art.wire.headers import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD


@dataclass(kw_only=True, slots=True)
class Completion:
    """What the engine emitted for one choice, so far."""

    sample_id: str
    token_ids: list[int]
    logprobs: list[float]
    tops: list[TopLogprobs] = field(default_factory=list)
    """The most probable ids beside each, where they were asked for."""
    candidates: list[bytes] = field(default_factory=list)
    """Records of `art.wire.candidates`, of one delta after the other."""
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    named_call: bool = False
    """The request demanded a call of one tool by its name."""


def message_of(
    completion: Completion, parsed: Parsed, kept: Parsed | None = None, *, keep_stop: bool = False
) -> dict[str, Any]:
    """The assistant's message. What follows a stop string is not part of it, and itself only by `keep_stop`.

    kept: what was said within `min_tokens`, where no stop string ends it.
    """
    content, reasoning = parsed.content, parsed.reasoning or ""
    if completion.stop_string is not None:
        stop = completion.stop_string
        content = _cut(content, stop, kept.content if kept else "", keep_stop)
        reasoning = _cut(reasoning, stop, (kept.reasoning or "") if kept else "", keep_stop)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if parsed.tool_calls:
        message["content"] = content or None
        message["tool_calls"] = calls_of(completion, parsed)
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def calls_of(completion: Completion, parsed: Parsed) -> list[dict[str, Any]]:
    """The calls of a message, each with its id."""
    return [
        {
            "id": call_id(completion.sample_id, index),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(parsed.tool_calls)
    ]


def _cut(text: str, stop: str, kept: str, keep_stop: bool) -> str:
    """The text before the first stop string that does not end in what is kept, or up to its end."""
    at = text.find(stop, max(0, len(kept.rstrip("\ufffd")) - len(stop) + 1))
    return text if at < 0 else text[: at + len(stop) * keep_stop]


def finish_reason(completion: Completion, message: dict[str, Any]) -> str:
    """`tool_calls` where calls were read from a reply that ended by itself, unless they had to be."""
    if completion.named_call:
        return completion.finish_reason or "stop"
    if "tool_calls" in message and completion.finish_reason == "stop":
        return "tool_calls"
    return completion.finish_reason or "stop"


def choice_of(
    index: int,
    completion: Completion,
    message: dict[str, Any],
    step: int | None,
    logprobs: dict[str, Any] | None,
) -> dict[str, Any]:
    """One choice of a whole reply."""
    finish = finish_reason(completion, message)
    said = {"message": message}
    return partial_choice(index, said, completion=completion, step=step, finish=finish, logprobs=logprobs)


def partial_choice(
    index: int,
    said: dict[str, Any],
    *,
    completion: Completion,
    step: int | None,
    finish: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """One choice that may go on; the part that ends it tells its tokens.

    said: {"delta": ...}, {"text": ...} or {"message": ...}.
    """
    choice: dict[str, Any] = {
        "index": index,
        **said,
        "logprobs": logprobs,
        "finish_reason": finish,
        SAMPLE_FIELD: completion.sample_id,
        STEP_FIELD: step,
    }
    if finish is not None:
        choice[TOKENS_FIELD] = len(completion.token_ids)
    return choice


def logprobs_of(
    renderer: ChatRenderer,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    tops: Sequence[TopLogprobs] = (),
    *,
    as_ids: bool = False,
) -> dict[str, Any]:
    """One entry for each sampled id, the one that ended the turn included. `tops`: for each or for none.
    `as_ids`: tokens are called by their ids.
    """
    content = []
    for token_id, logprob, top in zip(token_ids, logprobs, tops or ((),) * len(token_ids), strict=True):
        beside = [_entry(renderer, other, value, as_ids) for other, value in top]
        content.append({**_entry(renderer, token_id, logprob, as_ids), "top_logprobs": beside})
    return {"content": content, "refusal": None}


def _entry(renderer: ChatRenderer, token_id: int, logprob: float, as_ids: bool) -> dict[str, Any]:
    spelled = renderer.token_bytes(token_id)
    return {"token": token_name(token_id, spelled, as_ids), "logprob": logprob, "bytes": list(spelled)}


def token_name(token_id: int, spelled: bytes, as_ids: bool) -> str:
    """What logprobs call a token: its text or, as vLLM has it, its id."""
    return f"token_id:{token_id}" if as_ids else spelled.decode("utf-8", "replace")


def usage_of(prompt_tokens: int, completions: Sequence[Completion]) -> dict[str, Any]:
    """Counts of ids: the prompt's once, the completions' together."""
    sampled = sum(len(completion.token_ids) for completion in completions)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": prompt_tokens + sampled,
    }
