"""A call of any dialect as messages and choices of chat completions, which judges, pages and training read.

    completions   the prompt is what the user says; ids of a prompt are shown by their number
    responses     `instructions` and the items of `input`; `previous_response_id` is an earlier call
    messages      `system` and blocks: text, thinking, calls and their results

What has no place in a chat (citations, signatures, server tools) is left out here and stays in the exchange.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice

from art.exchanges import RecordedExchange
from art.recording.captured_reply import note_choices
from art.wire.message_identity import as_dict
from art.wire.rollouts import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD

Message = dict[str, Any]
_SAMPLE_FIELDS = (SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD)


class CallConversation(NamedTuple):
    """Holds what a call asked, and the replies to it."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    choices: list[Choice]


def conversations_of(
    exchange: RecordedExchange, earlier: Mapping[str, CallConversation]
) -> list[CallConversation]:
    """Returns the call as chats: one, or one for each of several prompts.

    earlier: calls of the responses API before it, by the id of their reply.
    """
    request = exchange.request
    if exchange.dialect == "chat_completions":
        return [chat_conversation(request, exchange.response)]
    found = _READERS[exchange.dialect](request, as_dict(exchange.response), earlier)
    times = {"started_at": exchange.start_time.timestamp(), "ended_at": exchange.end_time.timestamp()}
    for conversation in found:
        note_choices(conversation.choices, {**times, "model": exchange.model})
    return found


def chat_conversation(request: Mapping[str, Any], completion: ChatCompletion) -> CallConversation:
    """Returns a call of chat completions."""
    messages = [as_dict(message) for message in request.get("messages") or ()]
    tools = [as_dict(tool) for tool in request.get("tools") or ()] or None
    return CallConversation(messages, tools, list(completion.choices))


def _choice(index: int, reason: str, message: Message, fields: Mapping[str, Any]) -> Choice:
    sampled = {name: fields[name] for name in _SAMPLE_FIELDS if fields.get(name) is not None}
    said = {"role": "assistant", "content": None, **message}
    return Choice.model_validate(
        {"index": index, "finish_reason": reason, "message": said, "logprobs": None, **sampled}
    )


def _of_completions(
    request: Message, reply: Message, earlier: Mapping[str, CallConversation]
) -> list[CallConversation]:
    prompt = request.get("prompt") or ""
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    said = [
        _choice(n, one.get("finish_reason") or "stop", {"content": one.get("text") or ""}, one)
        for n, one in enumerate(reply["choices"])
    ]
    each = max(1, len(said) // len(prompts))
    return [
        CallConversation(
            [{"role": "user", "content": f"[{len(asked)} token ids]" if isinstance(asked, list) else asked}],
            None,
            said[n * each : (n + 1) * each],
        )
        for n, asked in enumerate(prompts)
    ]


def _of_messages(
    request: Message, reply: Message, earlier: Mapping[str, CallConversation]
) -> list[CallConversation]:
    system = _text_of(request.get("system"))
    messages = [{"role": "system", "content": system}] if system else []
    for message in map(as_dict, request.get("messages") or ()):
        messages += _chat_turns(message.get("role") or "user", message.get("content"))
    tools = [_chat_tool(tool, "input_schema") for tool in map(as_dict, request.get("tools") or ())]
    said = _chat_turns("assistant", reply["content"])[-1]
    reason = {"max_tokens": "length", "tool_use": "tool_calls"}.get(reply.get("stop_reason") or "", "stop")
    return [CallConversation(messages, tools or None, [_choice(0, reason, said, reply)])]


def _chat_turns(role: str, content: Any) -> list[Message]:
    """The messages that blocks of one turn are: results of tools are messages of their own."""
    if content is None or isinstance(content, str):
        return [{"role": role, "content": content or ""}]
    blocks = [as_dict(block) for block in content]
    turns: list[Message] = [
        _result(block.get("tool_use_id"), _text_of(block.get("content")))
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    said: Message = {"role": role, "content": _parts(blocks)}
    if thought := "".join(block.get("thinking") or "" for block in blocks):
        said["reasoning_content"] = thought
    calls = [
        _chat_call(block.get("id"), block.get("name"), block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    if calls:
        said["tool_calls"] = calls
    return [*turns, said] if said["content"] or calls or thought or not turns else turns


def _parts(blocks: Sequence[Message]) -> Any:
    """The text of blocks, or the parts of a message where images are among them."""
    texts = [str(block.get("text") or "") for block in blocks if _is_text(block)]
    images = [_image_url(block) for block in blocks if block.get("type") in ("image", "input_image")]
    if not images:
        return "\n".join(texts)
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return [*({"type": "text", "text": text} for text in texts), *shown]


def _is_text(block: Message) -> bool:
    return block.get("type") in ("text", "input_text", "output_text", "refusal", "reasoning_text")


def _image_url(block: Message) -> str:
    source = block.get("source") or {}
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return str(source.get("url") or block.get("image_url") or "")


def _text_of(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(block.get("text") or "") for block in map(as_dict, content) if _is_text(block))


def _result(call: Any, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call or "", "content": content}


def _chat_call(identifier: Any, name: Any, arguments: Any) -> Message:
    spelled = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {
        "id": str(identifier or ""),
        "type": "function",
        "function": {"name": str(name or ""), "arguments": spelled},
    }


def _chat_tool(tool: Message, schema: str) -> dict[str, Any]:
    if "name" not in tool:
        return tool
    described = {"name": tool["name"], "description": tool.get("description"), "parameters": tool.get(schema)}
    function = {name: value for name, value in described.items() if value is not None}
    return {"type": "function", "function": function}


def _of_responses(
    request: Message, reply: Message, earlier: Mapping[str, CallConversation]
) -> list[CallConversation]:
    before = earlier.get(request.get("previous_response_id") or "")
    messages: list[Message] = []
    if request.get("instructions"):
        messages.append({"role": "system", "content": request["instructions"]})
    if before is not None:
        past = before.messages[1:] if _has_system(before.messages) else before.messages
        messages += [*past, *(as_dict(choice.message) for choice in before.choices[:1])]
    given = request.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        messages += _turns_of_items(map(as_dict, given or ()))
    tools = [_chat_tool(tool, "parameters") for tool in map(as_dict, request.get("tools") or ())]
    (said,) = _turns_of_items(reply["output"])[-1:] or [{"content": ""}]
    ended = "tool_calls" if said.get("tool_calls") else "stop"
    reason = "length" if reply.get("status") == "incomplete" else ended
    return [CallConversation(messages, tools or None, [_choice(0, reason, said, reply)])]


def _has_system(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[0].get("role") in ("system", "developer")


def _turns_of_items(items: Iterable[Message]) -> list[Message]:
    """The messages that items are. Reasoning, a text and calls in a row are one turn of the assistant."""
    turns: list[Message] = []
    open_turn: Message | None = None

    def assistant() -> Message:
        nonlocal open_turn
        if open_turn is None:
            open_turn = {"role": "assistant", "content": ""}
            turns.append(open_turn)
        return open_turn

    for item in items:
        kind = item.get("type") or "message"
        if kind == "reasoning":
            open_turn = None
            thought = _text_of(item.get("content") or item.get("summary"))
            assistant()["reasoning_content"] = thought
        elif kind == "message" and item.get("role") == "assistant":
            if open_turn is not None and (open_turn["content"] or "tool_calls" in open_turn):
                open_turn = None
            assistant()["content"] = _text_of(item.get("content"))
        elif kind == "message":
            open_turn = None
            content = item.get("content")
            shown = content if isinstance(content, str) else _parts([as_dict(one) for one in content or ()])
            turns.append({"role": item.get("role") or "user", "content": shown})
        elif kind.endswith("_call"):
            arguments: Any = next(
                (item[name] for name in ("arguments", "input", "action") if name in item), {}
            )
            call = _chat_call(item.get("call_id"), item.get("name") or kind, arguments)
            assistant().setdefault("tool_calls", []).append(call)
        elif kind.endswith("_output"):
            open_turn = None
            output = item.get("output")
            shown = output if isinstance(output, str) else _text_of(output)
            turns.append(_result(item.get("call_id"), shown))
    return turns


_Reader = Callable[[Message, Message, Mapping[str, CallConversation]], list[CallConversation]]
_READERS: Mapping[str, _Reader] = {
    "completions": _of_completions,
    "responses": _of_responses,
    "messages": _of_messages,
}
