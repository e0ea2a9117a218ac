"""Tools of an Anthropic request as functions of a chat.

A tool with an `input_schema` is a function. Of Anthropic's own tools, those that the agent runs (bash, text
editor, memory) are functions with the arguments that Anthropic documents: its models know them without being
told. Those that run at Anthropic (web search, code execution, ...) are left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from art.server.chat.request_fields import LeftOutParts
from art.wire.request_values import OBJECT, TEXT, Schema, refuse

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_NO_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
_KNOWN = frozenset({"type", "name", "description", "input_schema", "cache_control", "strict"})
_IDLE: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "eager_input_streaming": (True, False),
        "input_examples": ([],),
    }
)
"""Fields of a tool with the values that ask for nothing."""

TOOL: Schema = {
    "type": "object",
    "properties": {"name": TEXT.schema, "description": TEXT.schema, "input_schema": OBJECT.schema},
    "required": ["name"],
}
CHOICE: Schema = {
    "type": "object",
    "properties": {"type": {"enum": [*_CHOICES, "tool"]}, "name": TEXT.schema},
    "required": ["type"],
}

_FLAG, _TEXT, _LINE = {"type": "boolean"}, {"type": "string"}, {"type": "integer"}
_LINES = {"type": "array", "items": _LINE}


def _arguments(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _one_of(*commands: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(commands)}


_TEXTS = {"path": _TEXT, "file_text": _TEXT, "old_str": _TEXT, "new_str": _TEXT}
_PLACES = {"insert_line": _LINE, "insert_text": _TEXT, "view_range": _LINES}
_EDITOR = (
    "View, create and edit text files. view: path, perhaps view_range. create: path, file_text. str_replace: "
    "path, old_str, new_str. insert: path, insert_line, insert_text."
)
_RUN_BY_AGENT: Mapping[str, tuple[str, dict[str, Any]]] = MappingProxyType(
    {
        "bash": (
            "Run a command in a bash session that stays open. restart: true starts a new session.",
            _arguments(command=_TEXT, restart=_FLAG),
        ),
        "text_editor": (
            _EDITOR,
            _arguments(
                "command",
                "path",
                command=_one_of("view", "create", "str_replace", "insert"),
                **_TEXTS,
                **_PLACES,
            ),
        ),
        "memory": (
            f"Keep notes in files under /memories. {_EDITOR} delete: path. rename: old_path, new_path.",
            _arguments(
                "command",
                command=_one_of("view", "create", "str_replace", "insert", "delete", "rename"),
                old_path=_TEXT,
                new_path=_TEXT,
                **_TEXTS,
                **_PLACES,
            ),
        ),
    }
)
"""Description and arguments of a tool, by its type without the date."""
_DATED = re.compile(r"(\w+)_20\d{6}")


def chat_tools(tools: list[Any], left_out: LeftOutParts) -> list[dict[str, Any]]:
    """The tools that the model is shown. Raises: RequestError naming the tool."""
    read = (_tool(tool, f"tools[{n}]", left_out) for n, tool in enumerate(tools))
    return [tool for tool in read if tool is not None]


def chat_tool_choice(choice: Any) -> tuple[Any, bool]:
    """The choice as the chat API spells it, and whether several calls may stand together. Raises:
    RequestError.
    """
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(kind, str) and kind in _CHOICES:
        chosen: Any = _CHOICES[kind]
    elif kind == "tool":
        if not isinstance(choice.get("name"), str):
            refuse("tool_choice.name must be the name of a tool", "tool_choice.name")
        chosen = {"type": "function", "function": {"name": choice["name"]}}
    else:
        refuse("tool_choice.type must be one of auto, any, tool, none", "tool_choice.type")
    alone = choice.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        at = "tool_choice.disable_parallel_tool_use"
        refuse(f"{at} must be true or false", at)
    return chosen, not alone


def check_cache_control(value: Any, at: str) -> None:
    """Prefixes are reused as they can be: the field is understood, and changes no reply."""
    if value is not None and (not isinstance(value, dict) or value.get("type") != "ephemeral"):
        refuse(f"{at} must be an object of type 'ephemeral'", at)


def _tool(tool: Any, at: str, left_out: LeftOutParts) -> dict[str, Any] | None:
    if not isinstance(tool, dict):
        refuse(f"{at} must be an object with name and input_schema", at)
    kind = tool.get("type")
    if kind not in (None, "custom") and tool.get("input_schema") is None:
        return _provided_tool(tool, kind, at, left_out)
    why = "the model is shown the tool without it"
    left_out.skip_others(tool, _KNOWN, "tools", at, why, idle=_IDLE)
    check_cache_control(tool.get("cache_control"), f"{at}.cache_control")
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        refuse(f"{at}.input_schema must be a JSON schema object", f"{at}.input_schema")
    function: dict[str, Any] = {"name": _name(tool, at)}
    if tool.get("description") is not None:
        if not isinstance(tool["description"], str):
            refuse(f"{at}.description must be a string", f"{at}.description")
        function["description"] = tool["description"]
    function["parameters"] = schema or _NO_SCHEMA
    if tool.get("strict"):
        function["strict"] = True
    return {"type": "function", "function": function}


def _provided_tool(
    tool: Mapping[str, Any], kind: Any, at: str, left_out: LeftOutParts
) -> dict[str, Any] | None:
    """The function of a tool that is defined by its type; None: it runs at Anthropic."""
    if not isinstance(kind, str):
        refuse(f"{at}.type must be a string", f"{at}.type")
    dated = _DATED.fullmatch(kind)
    known = _RUN_BY_AGENT.get(dated[1]) if dated else None
    if known is None:
        why = f"the tool {kind[:100]!r} runs at Anthropic: the model is not shown it. Define a tool with name"
        left_out.skip(f"tools: {kind}", at, f"{why} and input_schema instead, and answer its calls")
        return None
    description, parameters = known
    function = {"name": _name(tool, at), "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _name(tool: Mapping[str, Any], at: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str):
        refuse(f"{at}.name must be a string", f"{at}.name")
    return name
