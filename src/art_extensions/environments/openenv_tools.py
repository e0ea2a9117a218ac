"""Tools of OpenEnv's environments in the form of OpenAI's API: the list of them, and a call as an action.

An environment of tools (`CallToolAction`) lists them itself. Of any other, the action is one tool: its
parameters are the action's fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art.process.foreign_files import parse_json

LIST_TOOLS = {"type": "list_tools"}
"""The action that an environment of tools answers with their list."""
CALL_FIELDS = frozenset({"tool_name", "arguments"})
"""The fields of an action that calls a tool."""
ACT = "act"
"""The name of the tool that an action is."""


class InvalidActionError(Exception):
    """A reply is no action of the environment; the message tells the model why."""


@dataclass(frozen=True)
class ActionTools:
    """The tools that the model is offered."""

    functions: Sequence[Mapping[str, Any]]
    """Tools in OpenAI's form: {"type": "function", "function": {"name", "description", "parameters"}}."""
    listed: bool
    """The environment lists them; else there is one, the action."""

    def action_of(self, name: str, arguments: str) -> dict[str, Any]:
        """Returns the action that a call is. Raises InvalidActionError."""
        try:
            value = parse_json(arguments)
        except ValueError as error:
            raise InvalidActionError(f"the arguments of {name} are no JSON ({error})") from error
        if not isinstance(value, dict):
            raise InvalidActionError(f"the arguments of {name} are no JSON object")
        if self.listed:
            return {"type": "call_tool", "tool_name": name, "arguments": value}
        if name != ACT:
            raise InvalidActionError(f"there is no tool {name}: the tool is {ACT}")
        return value


def offer_listed(observation: Mapping[str, Any]) -> ActionTools:
    """Returns the tools that an environment answers LIST_TOOLS with: none if it has none."""
    tools: Any = observation.get("tools") or ()
    return ActionTools(
        [
            _function(one["name"], one.get("description") or "", one.get("input_schema") or {})
            for one in tools
        ],
        listed=True,
    )


def offer_action(fields: Mapping[str, Any], schema: Mapping[str, Any]) -> ActionTools:
    """Returns an action as a tool. fields: those that the model fills; schema: the action's JSON schema."""
    parameters = {
        "type": "object",
        "properties": dict(fields),
        "required": [one for one in schema.get("required", ()) if one in fields],
        **({"$defs": schema["$defs"]} if "$defs" in schema else {}),
    }
    return ActionTools([_function(ACT, schema.get("description") or "", parameters)], listed=False)


def _function(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {}, **parameters}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def call_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an observation with the result of a call as the text that the tool gave.

    fields: of a `CallToolObservation` {"tool_name", "result", "error"}, or of another, which is returned.
    """
    if not {"tool_name", "result"} <= {*fields}:
        return dict(fields)
    more = {key: one for key, one in fields.items() if key not in ("tool_name", "result", "error")}
    if error := fields.get("error"):
        return {"error": f"Error: {error['message']}", **more}
    result = fields["result"]
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):  # of an MCP server
        parts = [one["text"] if one.get("type") == "text" else json.dumps(one) for one in result["content"]]
        result = "\n".join(parts)
    return {"result": result, **more}
