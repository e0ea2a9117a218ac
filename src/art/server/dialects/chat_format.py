"""What a chat request says about the form of its reply: its format, its calls, its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import orjson

from art.constraints.grammar import LARGEST
from art.engine.protocol import Constraint
from art.server.dialects.refusal import refuse

if TYPE_CHECKING:
    from art.server.dialects.chat_request import ChatRequest

_MOST_IDS = 1024
_HIGHEST_BIAS = 100.0
_ANY_OBJECT = Constraint(kind="json_schema", text='{"type":"object"}')


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolChoice:
    """Whether a reply calls, and which tools."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    """None: any of the request's."""
    named: bool = False
    """One tool was demanded by its name: the finish reason is then `stop`, as OpenAI has it."""


FREE_CHOICE = ToolChoice()


def read_tool_choice(request: ChatRequest, name: str, value: Any) -> None:
    """auto, none, required, one function by name, or some of the tools."""
    if value in ("auto", "none", "required"):
        request.tool_choice = ToolChoice(mode=value)
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function":
        request.tool_choice = ToolChoice(mode="required", names=(_function(value, name),), named=True)
    elif kind == "allowed_tools":
        allowed = value.get("allowed_tools")
        allowed = allowed if isinstance(allowed, dict) else value
        mode, tools = allowed.get("mode", "auto"), allowed.get("tools")
        if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
            refuse(f"{name}.allowed_tools needs a mode, 'auto' or 'required', and a list of tools", name)
        request.tool_choice = ToolChoice(mode=mode, names=tuple(_function(tool, name) for tool in tools))
    else:
        refuse(
            f"tool_choice = {value!r} is not supported; supported: 'auto', 'none', 'required', "
            "{'type': 'function', 'function': {'name': ...}}, {'type': 'allowed_tools', ...}",
            name,
            "unsupported_parameter",
        )


def check_choice(request: ChatRequest) -> None:
    """A choice among tools is among the request's own. Raises: RequestError."""
    choice = request.tool_choice
    known = [tool["function"]["name"] for tool in request.tools or ()]
    for wanted in choice.names or ():
        if wanted not in known:
            listed = ", ".join(map(repr, known)) or "none"
            refuse(f"tool_choice names {wanted!r}, which is not among the tools: {listed}", "tool_choice")
    if choice.mode == "required" and not known:
        refuse("tool_choice demands a call, and the request has no tools", "tool_choice")


def read_response_format(request: ChatRequest, name: str, value: Any) -> None:
    """text, json_object, or json_schema; `strict` or not, the reply follows the schema."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "json_object":
        _constrain(request, name, _ANY_OBJECT)
    elif kind == "json_schema":
        given = value.get("json_schema")
        schema = given.get("schema") if isinstance(given, dict) else None
        if not isinstance(schema, dict):
            refuse(f"{name}.json_schema.schema must be a JSON schema object", name)
        _constrain(request, name, Constraint(kind="json_schema", text=_spelled(schema, name)))
    elif kind != "text":
        refuse(
            f"{name} = {value!r} is not supported; supported types: 'text', 'json_object', 'json_schema'",
            name,
            "unsupported_parameter",
        )


def read_guided_json(request: ChatRequest, name: str, value: Any) -> None:
    """vLLM's: a schema, as an object or as its text."""
    if not isinstance(value, dict | str):
        refuse(f"{name} must be a JSON schema, not {value!r}", name)
    text = value if isinstance(value, str) else _spelled(value, name)
    _constrain(request, name, Constraint(kind="json_schema", text=text))


def read_guided_regex(request: ChatRequest, name: str, value: Any) -> None:
    """vLLM's: a regular expression."""
    if not isinstance(value, str):
        refuse(f"{name} must be a regular expression, not {value!r}", name)
    _constrain(request, name, Constraint(kind="regex", text=value))


def read_guided_choice(request: ChatRequest, name: str, value: Any) -> None:
    """vLLM's: a list of texts, of which the reply is one."""
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        refuse(f"{name} must be a list of texts, none empty, not {value!r}", name)
    _constrain(request, name, Constraint(kind="choice", text=_spelled(value, name)))


def read_guided_grammar(request: ChatRequest, name: str, value: Any) -> None:
    """vLLM's: a grammar, in Lark's notation."""
    if not isinstance(value, str):
        refuse(f"{name} must be a grammar in Lark's notation, not {value!r}", name)
    _constrain(request, name, Constraint(kind="lark", text=value))


def read_structured_outputs(request: ChatRequest, name: str, value: Any) -> None:
    """vLLM's newer spelling of its four guided fields."""
    readers = {
        "json": read_guided_json,
        "regex": read_guided_regex,
        "choice": read_guided_choice,
        "grammar": read_guided_grammar,
        "json_object": _json_object,
    }
    given = {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else {}
    if len(given) != 1 or next(iter(given)) not in readers:
        refuse(f"{name} must be an object with one of {', '.join(readers)}, not {value!r}", name)
    for kind, wanted in given.items():
        readers[kind](request, f"{name}.{kind}", wanted)


def read_logit_bias(request: ChatRequest, name: str, value: Any) -> None:
    """Ids, as text, with what is added to their logits; ids that the model does not have it refuses."""
    if not isinstance(value, dict) or len(value) > _MOST_IDS:
        refuse(f"{name} must be an object of up to {_MOST_IDS} ids with their biases", name)
    pairs = []
    for key, bias in value.items():
        fits = isinstance(bias, int | float) and not isinstance(bias, bool) and math.isfinite(bias)
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            refuse(f"{name} has the key {key!r}, which is no token id", name)
        if not fits or abs(bias) > _HIGHEST_BIAS:
            refuse(f"{name}[{key!r}] must be a number from -100 to 100, not {bias!r}", name)
        if bias:
            pairs.append((int(key), float(bias)))
    request.logit_bias = tuple(sorted(pairs))


def read_stop_token_ids(request: ChatRequest, name: str, value: Any) -> None:
    """vLLM's: further ids that end the reply; they stay in it."""
    if (
        not isinstance(value, list)
        or len(value) > _MOST_IDS
        or not all(type(one) is int and 0 <= one < 2**31 for one in value)
    ):
        refuse(f"{name} must be a list of up to {_MOST_IDS} token ids, not {value!r}", name)
    request.stop_token_ids = tuple(value)


def _json_object(request: ChatRequest, name: str, value: Any) -> None:
    if value is not True:
        refuse(f"{name} must be true, not {value!r}", name)
    _constrain(request, name, _ANY_OBJECT)


def _constrain(request: ChatRequest, name: str, constraint: Constraint) -> None:
    if request.constraint is not None:
        refuse(f"{name} and {request.constrained_by} both say what the reply looks like; send one", name)
    if len(constraint.text) > LARGEST:
        refuse(f"{name} has {len(constraint.text)} characters; {LARGEST} are the most", name)
    request.constraint, request.constrained_by = constraint, name


def _function(value: Any, name: str) -> str:
    function = value.get("function", value) if isinstance(value, dict) else None
    wanted = function.get("name") if isinstance(function, dict) else None
    if not isinstance(wanted, str):
        refuse(f"{name} must name a function: {{'type': 'function', 'function': {{'name': ...}}}}", name)
    return wanted


def _spelled(value: Any, name: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        refuse(f"{name} cannot be written as JSON again: {error}", name)
