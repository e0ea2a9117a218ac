"""Tools for a model whose template knows none: the generic format, as plain messages that any template takes.

    system      Be brief.

                You are an expert in composing functions. [...]
                <tools>[{"type": "function", "function": {"name": "read", ...}}]</tools> [...]
    user        What does letter 7 say?
    assistant   <tool_call>[{"name": "read", "arguments": {"id": 7}}]</tool_call>
    user        <tool_response>
                hello
                </tool_response>

The words and the calls are those of SmolLM2's documentation (`instructions_function_calling.md` of its 1.7B
model). It shows no results of calls: they are written as Qwen and Hermes write them, and one line more tells
of them. Several calls of one reply stand in one list, their results in one turn. What the user says right
behind results stands in that turn too, because many templates want user and assistant to take turns.

The tags are text. In most vocabularies they are no tokens of their own, so calls are read from the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from art.rendering.chat_renderer import Parsed, ToolCall
from art.rendering.reply import JSON_DECODER, begun_call, is_object, raw_member, skip_space

CALL, END_CALL = "<tool_call>", "</tool_call>"
RESULT, END_RESULT = "<tool_response>", "</tool_response>"
_INTRODUCTION = """\
You are an expert in composing functions. You are given a question and a set of possible functions. 
Based on the question, you will need to make one or more function/tool calls to achieve the purpose. 
If none of the functions can be used, point it out and refuse to answer. 
If the given question lacks the parameters required by the function, also point it out.

You have access to the following tools:
<tools>"""  # noqa: W291  # the model saw these spaces
_FORM = """\
</tools>

The output MUST strictly adhere to the following format, and NO other text MUST be included.
The example format is as follows. Please make sure the parameter type is correct. If no function call is \
needed, please make the tool calls an empty list '[]'.
<tool_call>[
{"name": "func_name1", "arguments": {"argument1": "value1", "argument2": "value2"}},
... (more tool calls as required)
]</tool_call>
The results of the calls follow in <tool_response></tool_response>. When they answer the question, reply in \
plain text."""


def tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """The words of the system message about the tools."""
    return _INTRODUCTION + json.dumps(list(tools), ensure_ascii=False) + _FORM


def with_tools_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, system: bool
) -> list[Mapping[str, Any]]:
    """The messages with the tools told in the first one, behind its own text. `system`: the template has a
    place for a system message; else the tools stand before the first user's text.
    """
    text = tools_text(tools)
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        return [{**first, "content": _joined(first["content"], "\n\n", text)}, *messages[1:]]
    if system:
        return [{"role": "system", "content": text}, *messages]
    if messages and messages[0]["role"] == "user":
        first = messages[0]
        return [{**first, "content": _joined(text, "\n\n", first["content"])}, *messages[1:]]
    return [{"role": "user", "content": text}, *messages]


def as_plain(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages without calls and results: both are text."""
    plain: list[Mapping[str, Any]] = []
    behind_results = False
    for message in messages:
        role, content = message["role"], message.get("content")
        if role == "tool":
            between, content = "\n", _joined(_joined(f"{RESULT}\n", "", content), "", f"\n{END_RESULT}")
        else:
            between = "\n\n"
        if behind_results and role in ("tool", "user"):
            before = plain.pop()["content"]
            plain.append({"role": "user", "content": _joined(before, between, content)})
        elif role == "tool":
            plain.append({"role": "user", "content": content})
        elif role == "assistant" and message.get("tool_calls"):
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            calls = calls_text(message["tool_calls"])
            plain.append({**rest, "content": _joined(content, "\n", calls) if content else calls})
        else:
            plain.append(message)
        behind_results = role == "tool"
    return plain


def calls_text(calls: Sequence[Mapping[str, Any]]) -> str:
    """The calls of one reply.

    >>> calls_text([{"function": {"name": "read", "arguments": '{"id":7}'}}])
    '<tool_call>[{"name": "read", "arguments": {"id":7}}]</tool_call>'
    """
    written = []
    for call in calls:
        function = call.get("function", call)
        name, arguments = json.dumps(function["name"], ensure_ascii=False), function["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        written.append(f'{{"name": {name}, "arguments": {arguments}}}')
    return f"{CALL}[{', '.join(written)}]{END_CALL}"


def _joined(first: Any, between: str, second: Any) -> Any:
    """The two contents as one; parts, where one of them has parts."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{between}{second}"
    parts = [*_parts(first), *_parts(between), *_parts(second)]
    return parts if any(part["type"] != "text" for part in parts) else "".join(part["text"] for part in parts)


def _parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content or ())


def read_listed_calls(reply: Parsed, *, partial: bool, constrained: bool) -> Parsed:
    """A reply in words, with the calls in its content read. See `ChatRenderer.parse`.

    A list with one malformed call stays text as a whole, and so does the empty one.

    >>> read_listed_calls(
    ...     Parsed(content='I look. <tool_call>[{"name": "read", "arguments": {"id": 7}}]</tool_call>'),
    ...     partial=False,
    ...     constrained=False,
    ... )
    Parsed(content='I look.', reasoning=None, tool_calls=(ToolCall(name='read', arguments='{"id": 7}'),), \
malformed_calls=0)
    """
    if constrained and (start := reply.content.find(CALL)) >= 0:
        calls = _begun_calls(reply.content[start + len(CALL) :])
        if calls or partial:
            return replace(reply, content=reply.content[:start].rstrip(), tool_calls=calls)
    if partial:
        return replace(reply, content=_before_calls(reply.content))
    content, calls, malformed = _split(reply.content)
    if not calls:
        content = reply.content
    return replace(reply, content=content, tool_calls=calls, malformed_calls=malformed)


def _before_calls(text: str) -> str:
    """The text in which no call can begin any more, without the space that may stand before one."""
    end = text.find(CALL)
    if end < 0:
        end = next((len(text) - n for n in range(len(CALL) - 1, 0, -1) if text.endswith(CALL[:n])), len(text))
    return text[:end].rstrip()


def _split(text: str) -> tuple[str, tuple[ToolCall, ...], int]:
    """The words, the calls, and how many lists of calls cannot be read."""
    words, calls, malformed, at = "", [], 0, 0
    while (start := text.find(CALL, at)) >= 0:
        words = _append_words(words, text[at:start])
        end, listed = _read_list(text, start + len(CALL))
        if listed:
            calls += listed
        else:
            malformed += listed is None
            close = text.find(END_CALL, start)
            end = len(text) if close < 0 else close + len(END_CALL)
            words = _append_words(words, text[start:end])
        at = end
    return _append_words(words, text[at:]), tuple(calls), malformed


def _append_words(words: str, more: str) -> str:
    more = more.strip() if words else more.rstrip()
    return f"{words}\n{more}" if words and more else words or more


def _read_list(text: str, start: int) -> tuple[int, list[ToolCall] | None]:
    """The calls of the list, or of the single call, that stands here up to the closing tag, and the end of
    that; None where there is none.
    """
    at = skip_space(text, start)
    calls: list[ToolCall] = []
    try:
        if text[at : at + 1] != "[":
            at = _read_into(calls, text, at)
        else:
            at = skip_space(text, at + 1)
            while text[at : at + 1] != "]":
                at = skip_space(text, _read_into(calls, text, at))
                if text[at : at + 1] == ",":
                    at = skip_space(text, at + 1)
                elif text[at : at + 1] != "]":
                    return at, None
            at += 1
    except (ValueError, RecursionError):
        return at, None
    at = skip_space(text, at)
    return at + len(END_CALL), calls if text.startswith(END_CALL, at) else None


def _read_into(calls: list[ToolCall], text: str, start: int) -> int:
    """Returns the end of the call that begins here. Raises ValueError where it is none."""
    value, end = JSON_DECODER.raw_decode(text, start)
    name = value.get("name") if isinstance(value, dict) else None
    arguments = raw_member(text[start:end], "arguments") or "{}"
    if not isinstance(name, str) or not name:
        raise ValueError("a call without a name")
    if isinstance(value.get("arguments"), str):
        arguments = value["arguments"]
    if not is_object(arguments):
        raise ValueError("arguments that are no object")
    calls.append(ToolCall(name=name, arguments=arguments))
    return end


def _begun_calls(text: str) -> tuple[ToolCall, ...]:
    """The calls of a list that may be cut off, the last one with the arguments that are there."""
    calls: list[ToolCall] = []
    at = skip_space(text, 0)
    at = skip_space(text, at + 1) if text[at : at + 1] == "[" else at
    try:
        while text[at : at + 1] == "{":
            at = skip_space(text, _read_into(calls, text, at))
            at = skip_space(text, at + 1) if text[at : at + 1] == "," else at
    except (ValueError, RecursionError):
        begun = begun_call(text[at:].rstrip("\ufffd"))
        calls += [] if begun is None else [begun]
    return tuple(calls)
