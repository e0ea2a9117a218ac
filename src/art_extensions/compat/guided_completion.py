"""A student made to say what a teacher said, by the request that leaves it no other choice.

The student's sample then carries its own logprobs, so that the teacher's turn can be trained by
reinforcement; the server must support guided decoding (vLLM does).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

    from art.openai import Tools


def get_guided_completion_params(
    completion: ChatCompletion, base_tools: Tools | None = None
) -> tuple[list[str] | None, dict[str, Any] | str | None, list[dict[str, Any]] | None]:
    """Returns (guided_choice, tool_choice, tool_params) with which a student repeats the teacher's first
    choice.

    For a text, `guided_choice` is the only text allowed (`extra_body={"guided_choice": ...}`), and tools stay
    as they are. For a call, `tool_params` is the one tool with each argument frozen, and `tool_choice` forces
    it. Raises ConfigurationError for a call of an unknown tool, for several calls at once, and for neither
    text nor call.
    """
    message = completion.choices[0].message
    if not message.tool_calls:
        if not message.content:
            raise ConfigurationError("the teacher's message has neither text nor a tool call to repeat")
        tools = [dict(tool) for tool in base_tools] if base_tools else None
        return [message.content], "none" if tools else None, tools
    if len(message.tool_calls) > 1:
        names = ", ".join(repr(_function_of(call).name) for call in message.tool_calls)
        raise ConfigurationError(f"the teacher calls {names} in one turn, and only one call can be forced")
    function = _function_of(message.tool_calls[0])
    tool = _find_tool(base_tools or (), function.name)
    frozen = freeze_tool_schema(tool, json.loads(function.arguments or "{}"))
    return None, {"type": "function", "function": {"name": function.name}}, [frozen]


def freeze_tool_schema(tool: Mapping[str, Any], fixed_args: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an OpenAI tool whose arguments are exactly `fixed_args`: each an enum of one value, all
    required, no others allowed.
    """
    frozen: dict[str, Any] = copy.deepcopy(dict(tool))
    schema = frozen["function"].setdefault("parameters", {})
    known = schema.get("properties", {})
    schema["type"] = "object"
    schema["properties"] = {
        name: {**_enum_fields(known.get(name, {})), "enum": [value]} for name, value in fixed_args.items()
    }
    schema["required"] = list(fixed_args)
    schema["additionalProperties"] = False
    return frozen


def _enum_fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields allowed beside the enum; bounds and the like add nothing."""
    return {key: schema[key] for key in ("type", "description", "title") if key in schema}


def _function_of(call: Any) -> Any:
    if getattr(call, "type", "function") != "function":
        raise ConfigurationError(
            f"the teacher calls a tool of type {call.type!r}; only functions can be forced"
        )
    return call.function


def _find_tool(tools: Iterable[Any], name: str) -> Mapping[str, Any]:
    known = {tool["function"]["name"]: tool for tool in tools}
    if name not in known:
        listed = ", ".join(map(repr, known)) or "none"
        raise ConfigurationError(f"the teacher calls {name!r}, which is not among base_tools: {listed}")
    tool: Mapping[str, Any] = known[name]
    return tool
