"""Options of the Responses API in the chat API's words: tools, the form of the text, reasoning."""

from __future__ import annotations

from typing import Any

from art.server.dialects.chat_fields import read_effort
from art.server.dialects.chat_request import ChatRequest
from art.server.dialects.refusal import refuse

LOGPROBS = "message.output_text.logprobs"

_NOTHING_TO_INCLUDE = (
    # Our reasoning items hold the reasoning itself, so they can be sent back as they are.
    "reasoning.encrypted_content",
    # Of tools and inputs that are refused.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)

_NEUTRAL_OF_TOOL: dict[str, tuple[Any, ...]] = {
    "allowed_callers": (None, ["direct"]),
    "async": (None, False),
    "defer_loading": (None, False),
    "output_schema": (None,),
}


def chat_tools(tools: Any) -> list[dict[str, Any]]:
    """Function tools as the chat API spells them. Raises: RequestError naming the tool."""
    if not isinstance(tools, list):
        refuse(f"tools must be a list, not {tools!r:.200}", "tools")
    return [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _tool(tool: Any, at: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else tool
    if kind != "function":
        refuse(
            f"{at} is of type {kind!r:.100}; only 'function' is supported: tools run where the agent runs",
            at,
            "unsupported_parameter",
        )
    function = {}
    for name, value in tool.items():
        if name in _NEUTRAL_OF_TOOL:
            if value not in _NEUTRAL_OF_TOOL[name]:
                refuse(f"{at}.{name} = {value!r:.200} is not supported", at, "unsupported_parameter")
        elif name in ("name", "description", "parameters", "strict"):
            if value is not None:
                function[name] = value
        elif name != "type":
            refuse(f"{at}.{name} is not supported", at, "unsupported_parameter")
    return {"type": "function", "function": function}


def chat_tool_choice(choice: Any) -> Any:
    """The choice as the chat API spells it. Raises: RequestError."""
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    allowed = choice.get("tools")
    if kind == "allowed_tools" and isinstance(allowed, list):
        named = [{"type": "function", "function": {"name": _name_of(one)}} for one in allowed]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    refuse(
        f"tool_choice of type {kind!r:.100} is not supported; supported: auto, none, required, function",
        "tool_choice",
        "unsupported_parameter",
    )


def _name_of(tool: Any) -> Any:
    return tool.get("name") if isinstance(tool, dict) else None


def chat_format(text: Any) -> dict[str, Any] | None:
    """`response_format` of a `text`; None for plain text. Raises: RequestError."""
    if not isinstance(text, dict):
        refuse(f"text must be an object, not {text!r:.200}", "text")
    for name, value in text.items():
        if name not in ("format", "verbosity") and value is not None:
            refuse(f"text.{name} = {value!r:.100} is not supported", f"text.{name}", "unsupported_parameter")
    wanted = text.get("format")
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, dict) else wanted
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind != "json_schema":
        refuse(
            f"text.format is of type {kind!r:.100}; supported: 'text', 'json_object', 'json_schema'",
            "text.format",
        )
    schema = {name: value for name, value in wanted.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


_OF_REASONING = ("effort", "summary", "generate_summary")
"""A summary may be asked for: reasoning is told as it is, which says all that one would."""


def effort_of(reasoning: Any, request: ChatRequest) -> None:
    """Put the effort into the request. Raises: RequestError for what cannot be asked for."""
    if not isinstance(reasoning, dict):
        refuse(f"reasoning must be an object, not {reasoning!r:.200}", "reasoning")
    for name, value in reasoning.items():
        if name not in _OF_REASONING and value is not None:
            refuse(
                f"reasoning.{name[:100]} = {value!r:.100} is not supported: reasoning is told as it is",
                f"reasoning.{name[:100]}",
                "unsupported_parameter",
            )
    for name in ("summary", "generate_summary"):
        value = reasoning.get(name)
        if value is not None and value not in ("auto", "concise", "detailed"):
            refuse(
                f"reasoning.{name} must be auto, concise or detailed, not {value!r:.100}", f"reasoning.{name}"
            )
    request.effort_field = "reasoning.effort"
    if reasoning.get("effort") is not None:
        read_effort(request, "reasoning.effort", reasoning["effort"])


def includes_logprobs(include: Any) -> bool:
    """Whether logprobs are asked for. Raises: RequestError for what cannot be included."""
    if not isinstance(include, list):
        refuse(f"include must be a list, not {include!r:.200}", "include")
    for one in include:
        if one != LOGPROBS and one not in _NOTHING_TO_INCLUDE:
            known = ", ".join((LOGPROBS, *_NOTHING_TO_INCLUDE))
            refuse(f"include has {one!r:.100}; known: {known}", "include", "unsupported_parameter")
    return LOGPROBS in include
