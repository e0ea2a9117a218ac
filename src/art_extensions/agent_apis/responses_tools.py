"""Tools of the Responses API as functions of a chat, and calls of them as items.

A model is shown functions alone. What the agent runs has one, whose arguments are a field of the call's item:

    tool                    its function's arguments           item of a call      item of its result
    function                its own                            function_call       function_call_output
    custom                  {"input": a text}                  custom_tool_call    custom_tool_call_output
    local_shell             {"command": [...], ...}            local_shell_call    local_shell_call_output
    shell                   {"commands": [...], ...}           shell_call          shell_call_output
    apply_patch             {"type", "path", "diff"}           apply_patch_call    apply_patch_call_output
    tool_search (client)    its own                            tool_search_call    tool_search_output

Tools of a namespace stand beside the others, as `namespace__name`. Those that run at OpenAI are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from art.server.chat.request_fields import LeftOutParts
from art.wire.quoting import quote_value
from art.wire.request_values import UNSUPPORTED, refuse

Item = dict[str, Any]
_DEFAULT_NAMESPACE = "functions"
"""The namespace whose tools have no prefix: OpenAI's formats write it before every function."""
_IDLE: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {"allowed_callers": (["direct"],), "async": (False,), "defer_loading": (False,), "output_schema": ()}
)
"""Fields of a function with the values that ask for nothing."""
_FIELDS = ("type", "name", "description", "parameters", "strict")
_LESS = "the model is shown the tool without it"


def _parsed(arguments: str) -> dict[str, Any]:
    """The object that the model wrote; empty for what is none."""
    try:
        read = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return read if isinstance(read, dict) else {}


def _spelled(value: Any) -> str:
    return orjson.dumps(value).decode()


def _same(arguments: Any) -> Any:
    return arguments


def _input_of(arguments: str) -> str:
    text = _parsed(arguments).get("input")
    return text if isinstance(text, str) else arguments


def _arguments_of_input(text: Any) -> str:
    return _spelled({"input": text})


def _exec_action(arguments: str) -> dict[str, Any]:
    asked = _parsed(arguments)
    command = asked.get("command", [])
    if isinstance(command, str):
        command = ["bash", "-lc", command]
    return {"env": {}, **asked, "type": "exec", "command": command}


def _arguments_of_action(action: Any) -> str:
    given = action if isinstance(action, dict) else {}
    idle: dict[str, Any] = {"type": "exec", "env": {}}
    return _spelled({k: v for k, v in given.items() if v is not None and idle.get(k, v is None) != v})


def _shell_action(arguments: str) -> dict[str, Any]:
    return {"commands": [], **_parsed(arguments)}


def _without_nulls(value: Any) -> str:
    given = value if isinstance(value, dict) else {}
    return _spelled({k: v for k, v in given.items() if v is not None})


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolKind:
    """A type of tools that run where the agent runs."""

    type: str
    call: str
    """The type of the item of a call."""
    output: str
    field: str
    """The field of such an item that holds the arguments."""
    write: Callable[[str], Any] = _same
    """The field's value of the arguments that the model wrote."""
    read: Callable[[Any], str] = _same
    """The arguments of the field's value."""
    named: bool = False
    """Whether its tools have names of their own; otherwise there is one, named like its type."""
    parameters: Mapping[str, Any] | None = None
    """JSON schema of the arguments; None: the tool has it."""
    description: str = ""


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [required]}


_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_TEXTS = {"type": "array", "items": _TEXT}
FUNCTION = ToolKind(
    type="function", call="function_call", output="function_call_output", field="arguments", named=True
)
_KINDS = (
    FUNCTION,
    ToolKind(
        type="custom",
        call="custom_tool_call",
        output="custom_tool_call_output",
        field="input",
        write=_input_of,
        read=_arguments_of_input,
        named=True,
        parameters=_object("input", input=_TEXT),
    ),
    ToolKind(
        type="local_shell",
        call="local_shell_call",
        output="local_shell_call_output",
        field="action",
        write=_exec_action,
        read=_arguments_of_action,
        description="Run a command, given as the list of its words, such as ['bash', '-lc', 'ls'].",
        parameters=_object("command", command=_TEXTS, working_directory=_TEXT, timeout_ms=_NUMBER),
    ),
    ToolKind(
        type="shell",
        call="shell_call",
        output="shell_call_output",
        field="action",
        write=_shell_action,
        read=_without_nulls,
        description="Run commands in a shell.",
        parameters=_object("commands", commands=_TEXTS, timeout_ms=_NUMBER, max_output_length=_NUMBER),
    ),
    ToolKind(
        type="apply_patch",
        call="apply_patch_call",
        output="apply_patch_call_output",
        field="operation",
        write=_parsed,
        read=_without_nulls,
        description="Create, update or delete a file. diff: the lines of it, each behind ' ', '+' or '-'.",
        parameters=_object(
            "type",
            type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            path=_TEXT,
            diff=_TEXT,
        ),
    ),
    ToolKind(
        type="tool_search",
        call="tool_search_call",
        output="tool_search_output",
        field="arguments",
        write=_parsed,
        read=_spelled,
    ),
)
BY_TYPE: Mapping[str, ToolKind] = MappingProxyType({kind.type: kind for kind in _KINDS})
BY_CALL: Mapping[str, ToolKind] = MappingProxyType({kind.call: kind for kind in _KINDS})
BY_OUTPUT: Mapping[str, ToolKind] = MappingProxyType({kind.output: kind for kind in _KINDS})
ADDITIONAL_TOOLS, TOOL_SEARCH_OUTPUT = "additional_tools", "tool_search_output"


@dataclass(frozen=True, slots=True)
class ShownTool:
    """A tool as its request names it."""

    kind: ToolKind
    name: str
    namespace: str | None = None

    def call_fields(self, arguments: str) -> Item:
        """The fields of a call's item that say what is called, and with what."""
        named = {"name": self.name} if self.kind.named else {}
        if self.namespace is not None:
            named["namespace"] = self.namespace
        if self.kind.type == "tool_search":
            named["execution"] = "client"
        return {"type": self.kind.call, **named, self.kind.field: self.kind.write(arguments)}


def shown_name(name: str, namespace: str | None) -> str:
    """The name that the model is shown."""
    if namespace is None or namespace == _DEFAULT_NAMESPACE:
        return name
    return f"{namespace.rstrip('_')}__{name.lstrip('_')}"


class RequestTools:
    """The tools of a request: those that the model is shown, and what a call of each is."""

    def __init__(self, left_out: LeftOutParts) -> None:
        self._left_out = left_out
        self._shown: dict[str, ShownTool] = {}
        self.functions: list[dict[str, Any]] = []
        """The functions, in the chat API's spelling."""

    def add(self, tools: Iterable[Any], at: str, namespace: str | None = None) -> list[dict[str, Any]]:
        """Takes up a list of tools. Returns their functions. Raises: RequestError naming the tool."""
        added: list[dict[str, Any]] = []
        for index, tool in enumerate(tools):
            place = f"{at}[{index}]"
            kind = tool.get("type") if isinstance(tool, dict) else tool
            if not isinstance(kind, str) or not isinstance(tool, dict):
                refuse(f"{place} must be an object with a type, not {quote_value(tool)}", place)
            if kind == "namespace" and namespace is None:
                added += self._namespace(tool, place)
            elif kind in BY_TYPE and (kind != "tool_search" or tool.get("execution") == "client"):
                added.append(self._function(BY_TYPE[kind], tool, place, namespace))
            else:
                why = f"the tool {kind[:100]!r} runs at OpenAI: the model is not shown it. Define a function"
                self._left_out.skip(f"tools: {kind}", place, f"{why} instead, and answer its calls")
        return added

    def show(self, tools: Iterable[Any], at: str) -> None:
        """Shows the model these tools from the start of its prompt on. Raises: RequestError."""
        self.functions += self.add(tools, at)

    def call_fields(self, function: Mapping[str, str], arguments: str) -> Item:
        """The fields of the item of a call, whose type may be that of any tool of the request."""
        return self.tool_named(function["name"]).call_fields(arguments)

    def tool_named(self, shown: str) -> ShownTool:
        """The tool that a call names; a function of this name where the request has none."""
        return self._shown.get(shown) or ShownTool(FUNCTION, shown)

    def _namespace(self, tool: Mapping[str, Any], at: str) -> list[dict[str, Any]]:
        name, tools = tool.get("name"), tool.get("tools")
        if not isinstance(name, str) or not isinstance(tools, list):
            refuse(f"{at} must be a namespace with a name and a list of tools", at)
        return self.add(tools, f"{at}.tools", name)

    def _function(
        self, kind: ToolKind, tool: Mapping[str, Any], at: str, namespace: str | None
    ) -> dict[str, Any]:
        name = tool.get("name") if kind.named else kind.type
        if not isinstance(name, str):
            refuse(f"{at}.name must be a text, not {quote_value(name)}", f"{at}.name")
        shown = shown_name(name, namespace)
        self._shown[shown] = ShownTool(kind, name, namespace)
        described = [tool.get("description") or kind.description]
        if kind.type == "custom":
            described.append(_format_of(tool.get("format"), f"{at}.format"))
        function: dict[str, Any] = {"name": shown}
        if text := "\n\n".join(part for part in described if isinstance(part, str) and part):
            function["description"] = text
        parameters = kind.parameters or tool.get("parameters")
        if parameters is not None:
            function["parameters"] = parameters
        if kind is FUNCTION:
            if (strict := tool.get("strict")) is not None:
                if not isinstance(strict, bool):
                    refuse(f"{at}.strict is true or false, not {quote_value(strict, 100)}", f"{at}.strict")
                function["strict"] = strict
            self._left_out.skip_others(tool, _FIELDS, "tools", at, _LESS, idle=_IDLE)
        return {"type": "function", "function": function}


def _format_of(value: Any, at: str) -> str:
    """Describes the text that a custom tool takes. Raises: RequestError."""
    kind = value.get("type", "text") if isinstance(value, dict) else "text" if value is None else value
    if kind == "text":
        return ""
    if kind != "grammar" or not isinstance(value.get("definition"), str):
        refuse(f"{at} must be a text or a grammar with its definition, not {quote_value(value)}", at)
    return f"The input follows this grammar ({value.get('syntax')}):\n{value['definition']}"


def chat_tool_choice(choice: Any) -> Any:
    """The choice as the chat API spells it. Raises: RequestError."""
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if _is_ours(choice):
        return {"type": "function", "function": {"name": _chosen(choice)}}
    allowed = choice.get("tools")
    if kind == "allowed_tools" and isinstance(allowed, list):
        ours = [{"type": "function", **one} if isinstance(one, dict) else {} for one in allowed]
        named = [{"type": "function", "function": {"name": _chosen(one)}} for one in ours if _is_ours(one)]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    refuse(
        f"tool_choice of type {quote_value(kind, 100)} is not supported; supported: auto, none, required, "
        f"allowed_tools, {', '.join(BY_TYPE)}",
        "tool_choice",
        UNSUPPORTED,
    )


def _is_ours(tool: Mapping[str, Any]) -> bool:
    kind = tool.get("type")
    return isinstance(kind, str) and kind in BY_TYPE


def _chosen(tool: Mapping[str, Any]) -> Any:
    kind = BY_TYPE[tool["type"]]
    name, namespace = tool.get("name"), tool.get("namespace")
    if not kind.named or not isinstance(name, str):
        return kind.type if not kind.named else name
    return shown_name(name, namespace if isinstance(namespace, str) else None)
