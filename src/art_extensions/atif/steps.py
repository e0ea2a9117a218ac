"""Steps of ATIF and the messages of a conversation.

A step is a message of the system, the user or the agent; the results of an agent's tool calls are its
observation. Here each is a message of its own:

    {"source": "agent", "message": "", "tool_calls": [...],       {"role": "assistant", "tool_calls": [...]}
     "observation": {"results": [...]}}                     <->    {"role": "tool", "content": ...}
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from art.types import sample_id
from art_extensions.atif.residue import add_residue, residue_of

Message = Mapping[str, Any]
"""A message, or a choice, as plain JSON."""
AtifStep = dict[str, Any]


class SampledIds(Protocol):
    """The ids of a completion, as the ledger has them."""

    @property
    def prompt_ids(self) -> Sequence[int]: ...
    @property
    def completion_ids(self) -> Sequence[int]: ...
    @property
    def completion_logprobs(self) -> Sequence[float]: ...


Tokens = Mapping[str, SampledIds]
"""Sample -> its ids."""
OURS = "art"
"""The key of `extra` under which our fields lie."""
CHOICE, RESIDUES, INSTEAD = "choice", "messages", "instead"
"""Our fields of a step: whether it was sampled; what its messages have besides; its messages, as they are."""
_SOURCES = {"system": "system", "developer": "system", "user": "user", "assistant": "agent"}
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def group_messages(messages: Sequence[Message], sizes: Sequence[int] = ()) -> list[list[Message]]:
    """Returns the messages of each step. sizes: those of the steps that were read, if they still add up."""
    if sizes and sum(sizes) == len(messages):
        rest = iter(messages)
        return [[next(rest) for _ in range(size)] for size in sizes]
    groups: list[list[Message]] = []
    for message in messages:
        if groups and _role(message) == "tool" and _role(groups[-1][0]) == "assistant":
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def _role(message: Message) -> Any:
    return "assistant" if "finish_reason" in message else message.get("role")


def write_step(messages: Sequence[Message], number: int, tokens: Tokens) -> AtifStep:
    """Returns the step of one or several messages: the first, and the results of what it did."""
    head, results = (messages[0], messages[1:]) if messages else ({"role": "system", "content": ""}, [])
    said = head.get("message") or {} if "finish_reason" in head else head
    source = _SOURCES.get(_role(head))
    step: AtifStep = {"step_id": number, "source": source or "system", "message": ""}
    if source is None:  # a tool's result without its call
        results = messages
    else:
        step["message"] = _to_parts(said.get("content")) or ""
    if source == "agent":
        step.update(_of_agent(said, head, tokens))
    if results:
        known = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        step["observation"] = {"results": [_result(one, known) for one in results]}
    if "finish_reason" in head:
        step["extra"] = {OURS: {CHOICE: True}}
    return step | _kept_apart(step, messages)


def _kept_apart(step: AtifStep, messages: Sequence[Message]) -> AtifStep:
    """Returns the field `extra` with what the step does not say of its messages; nothing, if it says all."""
    made = messages_of(step)
    if len(made) != len(messages):
        return {"extra": {OURS: {INSTEAD: list(messages)}}}
    each = [residue_of(one, message) for one, message in zip(made, messages, strict=True)]
    if not any(each):
        return {}
    return {"extra": {OURS: {**step.get("extra", {}).get(OURS, {}), RESIDUES: each}}}


def _of_agent(said: Message, head: Message, tokens: Tokens) -> AtifStep:
    fields: AtifStep = {}
    if isinstance(reasoning := said.get("reasoning_content"), str):
        fields["reasoning_content"] = reasoning
    calls = [call for one in said.get("tool_calls") or () if (call := _call(one)) is not None]
    if calls:
        fields["tool_calls"] = calls
    if "finish_reason" in head:
        fields["llm_call_count"] = 1
    sample = tokens.get(str(head.get("sample_id")))
    if sample is not None:
        fields["metrics"] = {
            "prompt_tokens": len(sample.prompt_ids),
            "completion_tokens": len(sample.completion_ids),
            "prompt_token_ids": list(sample.prompt_ids),
            "completion_token_ids": list(sample.completion_ids),
            "logprobs": list(sample.completion_logprobs),
        }
    return fields


def _call(call: Any) -> dict[str, Any] | None:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(call.get("id"), str):
        return None
    arguments: Any = None
    with suppress(ValueError, TypeError, RecursionError):
        arguments = json.loads(function.get("arguments", ""))
    return {
        "tool_call_id": call["id"],
        "function_name": str(function.get("name", "")),
        "arguments": arguments if isinstance(arguments, dict) else {},
    }


def _result(message: Message, known: Collection[Any]) -> dict[str, Any]:
    result = {"content": _to_parts(message.get("content"))}
    call = message.get("tool_call_id")
    return {"source_call_id": call, **result} if isinstance(call, str) and call in known else result


def messages_of(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of a step: the first one, and one for each result of its observation."""
    ours = (step.get("extra") or {}).get(OURS)
    ours = ours if isinstance(ours, Mapping) else {}
    if isinstance(instead := ours.get(INSTEAD), list):
        return list(instead)
    results = [_of_result(one) for one in (step.get("observation") or {}).get("results") or ()]
    role = _ROLES[step["source"]]
    head: dict[str, Any] = {"role": role, "content": _from_parts(step["message"])}
    if role == "assistant":
        if isinstance(step.get("reasoning_content"), str):
            head["reasoning_content"] = step["reasoning_content"]
        if step.get("tool_calls"):
            head["tool_calls"] = [_call_back(one) for one in step["tool_calls"]]
        if ours.get(CHOICE):
            reason = "tool_calls" if step.get("tool_calls") else "stop"
            head = {"finish_reason": reason, "index": 0, "message": head}
    alone = results and role == "system" and step["message"] == ""
    messages = results if alone else [head, *results]
    residues = ours.get(RESIDUES) or [None] * len(messages)
    return [add_residue(made, one) for made, one in zip(messages, residues, strict=True)]


def _call_back(call: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": call["tool_call_id"],
        "type": "function",
        "function": {"name": call["function_name"], "arguments": json.dumps(call["arguments"])},
    }


def _of_result(result: Mapping[str, Any]) -> dict[str, Any]:
    content = _from_parts(result.get("content"))
    if (call := result.get("source_call_id")) is not None:
        return {"role": "tool", "content": content, "tool_call_id": call}
    return {"role": "user", "content": content}


def _to_parts(content: Any) -> Any:
    """Texts as they are; of a list of parts the texts, and images that the format can name."""
    if content is None or isinstance(content, str):
        return content
    parts = [_to_part(part) for part in content] if isinstance(content, list) else []
    return [part for part in parts if part is not None]


def _to_part(part: Any) -> dict[str, Any] | None:
    if not isinstance(part, Mapping):
        return None
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    image = part.get("image_url")
    address = image.get("url") if isinstance(image, Mapping) else None
    if isinstance(address, str) and (kind := _media_type(address)) is not None:
        return {"type": "image", "source": {"media_type": kind, "path": address}}
    return None


def _media_type(address: str) -> str | None:
    known = {"jpeg": "jpeg", "jpg": "jpeg", "png": "png", "gif": "gif", "webp": "webp"}
    head = address.partition(";")[0].removeprefix("data:image/")
    name = head if address.startswith("data:") else address.rpartition(".")[2].lower()
    return f"image/{known[name]}" if name in known else None


def _from_parts(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [
        {"type": "image_url", "image_url": {"url": part["source"]["path"]}}
        if part.get("type") == "image"
        else {"type": "text", "text": part.get("text") or ""}
        for part in content
    ]


def sample_ids(items: Iterable[Any]) -> list[str]:
    """Returns the samples of the choices among these items."""
    return [str(sample) for item in items if (sample := sample_id(item)) is not None]
