"""A chat completion request is read into a `ChatRequest`.

Each field acts, or `OTHER_FIELDS` says what becomes of it. A null is a field that was not given. First stand
the effects of fields that are more than an attribute, then the request, which declares the fields, then what
they say together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from art.engine.constraints import LONGEST_CONSTRAINT
from art.engine.protocol import Constraint
from art.server.chat.messages import MESSAGE, TOOL, message_size, read_messages, read_tools, sample_hint
from art.server.chat.request_fields import (
    LeftOutParts,
    RequestField,
    RequestSchema,
    check_object,
    declared_fields,
)
from art.server.ledger.stitching import tools_key_and_size
from art.wire.quoting import is_longer_than, quote_value
from art.wire.request_values import (
    AT_LEAST_ONE,
    FLAG,
    METADATA,
    NAME,
    OBJECT,
    ByHand,
    Idle,
    OfKind,
    OneOf,
    Values,
    Whole,
    refuse,
)
from art.wire.sampling import MOST_TOP_LOGPROBS, SamplingParameters

EFFORT = OneOf("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The levels of reasoning effort that OpenAI and vLLM define."""
MOST_ARGUMENTS = 128
"""The largest number of arguments of a chat template in a request."""


def _messages(request: ChatRequest, name: str, value: Any) -> None:
    request.messages = read_messages(value)
    request.size += sum(map(message_size, request.messages))


def _tools(request: ChatRequest, name: str, value: Any) -> None:
    request.tools = read_tools(value)
    try:
        request.tools_key, size = tools_key_and_size(request.tools)
    except TypeError as error:
        refuse(f"tools cannot be written as JSON again: {error}", name)
    request.size += size


def _max_tokens(request: ChatRequest, name: str, value: int) -> None:
    if request.max_tokens not in (None, value):
        refuse("max_tokens and max_completion_tokens differ; send one of them", "max_completion_tokens")
    request.max_tokens = value


_IDLE_OPTIONS = ("include_usage", "include_obfuscation", "continuous_usage_stats")
"""The names of stream options that are accepted where they ask for nothing."""


def _stream_options(request: ChatRequest, name: str, value: dict[str, Any]) -> None:
    for option, wanted in value.items():
        if option == "include_usage" and isinstance(wanted, bool):
            request.include_usage = wanted
        elif wanted and (option in _IDLE_OPTIONS or request.left_out is None):
            refuse(
                f"stream_options.{option} = {quote_value(wanted)} is not supported; supported: include_usage",
                f"stream_options.{option}",
                "unsupported_parameter",
            )
    if request.left_out is not None:
        request.left_out.skip_others(value, _IDLE_OPTIONS, name, name, "a stream has no such part")


def _template_arguments(request: ChatRequest, name: str, value: dict[str, Any]) -> None:
    if len(value) > MOST_ARGUMENTS:
        refuse(f"{name} has {len(value)} entries; at most {MOST_ARGUMENTS} are taken", name)
    request.chat_template_kwargs = value


_ANY_OBJECT = Constraint(kind="json_schema", text='{"type":"object"}')


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolChoice:
    """The choice of tools: whether a reply calls, and which tools."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] | None = None
    """None: any of the request's."""
    names_one_tool: bool = False
    """One tool was demanded by its name: the finish reason is then `stop`, as OpenAI has it."""


FREE_CHOICE = ToolChoice()
_CHOICES = ("auto", "none", "required")


def _tool_choice(request: ChatRequest, name: str, value: Any) -> None:
    """auto, none, required, one function by name, or some of the tools."""
    if value in _CHOICES:
        request.tool_choice = ToolChoice(mode=value)
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function":
        request.tool_choice = ToolChoice(
            mode="required", names=(_function(value, name),), names_one_tool=True
        )
    elif kind == "allowed_tools":
        allowed = value.get("allowed_tools")
        allowed = allowed if isinstance(allowed, dict) else value
        mode, tools = allowed.get("mode", "auto"), allowed.get("tools")
        if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
            refuse(f"{name}.allowed_tools needs a mode, 'auto' or 'required', and a list of tools", name)
        request.tool_choice = ToolChoice(mode=mode, names=tuple(_function(tool, name) for tool in tools))
    else:
        refuse(
            f"tool_choice = {quote_value(value)} is not supported; supported: 'auto', 'none', 'required', "
            "{'type': 'function', 'function': {'name': ...}}, {'type': 'allowed_tools', ...}",
            name,
            "unsupported_parameter",
        )


def _check_choice(request: ChatRequest) -> None:
    """A choice among tools is among the request's own. Raises: RequestError."""
    choice = request.tool_choice
    known = [tool["function"]["name"] for tool in request.tools or ()]
    for wanted in choice.names or ():
        if wanted not in known:
            listed = ", ".join(map(repr, known)) or "none"
            refuse(
                f"tool_choice names {quote_value(wanted)}, which is not among the tools: {listed}",
                "tool_choice",
            )
    if choice.mode == "required" and not known:
        refuse("tool_choice demands a call, and the request has no tools", "tool_choice")


def _response_format(request: ChatRequest, name: str, value: Any) -> None:
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
            f"{name} = {quote_value(value)} is not supported; supported types: 'text', 'json_object', "
            "'json_schema'",
            name,
            "unsupported_parameter",
        )


def _guided_json(request: ChatRequest, name: str, value: Any) -> None:
    text = value if isinstance(value, str) else _spelled(value, name)
    _constrain(request, name, Constraint(kind="json_schema", text=text))


def _guided_regex(request: ChatRequest, name: str, value: str) -> None:
    _constrain(request, name, Constraint(kind="regex", text=value))


def _guided_choice(request: ChatRequest, name: str, value: list[str]) -> None:
    _constrain(request, name, Constraint(kind="choice", text=_spelled(value, name)))


def _guided_grammar(request: ChatRequest, name: str, value: str) -> None:
    _constrain(request, name, Constraint(kind="lark", text=value))


_NO_EMPTY_TEXTS = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=LONGEST_CONSTRAINT // 4)
]
_SCHEMA = OfKind(
    *(dict, str),
    words="a JSON schema",
    schema={"anyOf": [{"additionalProperties": True, "type": "object"}, {"type": "string"}]},
)
_GUIDED = {
    "json": RequestField(_SCHEMA, _guided_json),
    "regex": RequestField(Values(str, "a regular expression"), _guided_regex),
    "choice": RequestField(Values(_NO_EMPTY_TEXTS, "a list of texts, none empty"), _guided_choice),
    "grammar": RequestField(Values(str, "a grammar in Lark's notation"), _guided_grammar),
}
"""vLLM's ways to say what a reply looks like: a schema, as an object or as its text; an expression; some
texts, of which the reply is one; a grammar."""


def _structured_outputs(request: ChatRequest, name: str, value: Any) -> None:
    """vLLM's newer spelling of its four guided fields."""
    kinds = (*_GUIDED, "json_object")
    looked_at = list(islice(value.items(), 2 * len(kinds))) if isinstance(value, dict) else []
    given = {kind: wanted for kind, wanted in looked_at if wanted is not None}
    if len(given) != 1 or next(iter(given)) not in kinds:
        refuse(f"{name} must be an object with one of {', '.join(kinds)}, not {quote_value(value)}", name)
    for kind, wanted in given.items():
        at = f"{name}.{kind}"
        if kind in _GUIDED:
            _GUIDED[kind].read(request, at, wanted)
        elif wanted is True:
            _constrain(request, at, _ANY_OBJECT)
        else:
            refuse(f"{at} must be true, not {quote_value(wanted)}", at)


def _constrain(request: ChatRequest, name: str, constraint: Constraint) -> None:
    if request.constraint is not None:
        refuse(f"{name} and {request.constrained_by} both say what the reply looks like; send one", name)
    if len(constraint.text) > LONGEST_CONSTRAINT:
        refuse(f"{name} has {len(constraint.text)} characters; {LONGEST_CONSTRAINT} are the most", name)
    request.constraint, request.constrained_by = constraint, name


def _function(value: Any, name: str) -> str:
    function = value.get("function", value) if isinstance(value, dict) else None
    wanted = function.get("name") if isinstance(function, dict) else None
    if not isinstance(wanted, str):
        refuse(f"{name} must name a function: {{'type': 'function', 'function': {{'name': ...}}}}", name)
    return wanted


def _spelled(value: Any, name: str) -> str:
    if is_longer_than(value, LONGEST_CONSTRAINT):
        refuse(f"{name} has more than {LONGEST_CONSTRAINT} characters, which are the most", name)
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        refuse(f"{name} cannot be written as JSON again: {error}", name)


_SOME_MESSAGES = ByHand({"type": "array", "items": MESSAGE, "minItems": 1})
_SOME_TOOLS = ByHand({"type": "array", "items": TOOL})
_CHOICE = ByHand({"anyOf": [{"enum": list(_CHOICES)}, OBJECT.schema]})
_AN_OBJECT = ByHand(OBJECT.schema)


@dataclass(kw_only=True, slots=True)
class ChatRequest(SamplingParameters):
    """A chat request, checked and in one spelling. `stop_token_ids` are besides those that end a turn.

    An attribute beside which a `RequestField` stands is a field of the body.
    """

    model: Annotated[str, RequestField(NAME)] = ""
    messages: Annotated[list[dict[str, Any]], RequestField(_SOME_MESSAGES, _messages)] = field(
        default_factory=list
    )
    tools: Annotated[list[dict[str, Any]] | None, RequestField(_SOME_TOOLS, _tools)] = None
    tools_key: bytes = b""
    tool_choice: Annotated[ToolChoice, RequestField(_CHOICE, _tool_choice)] = FREE_CHOICE
    parallel_tool_calls: Annotated[bool, RequestField(FLAG)] = True
    """False: a reply has at most one call."""
    constrained_by: str = ""
    """The field that says what the text of the reply must look like."""
    ignore_eos: Annotated[bool, RequestField(FLAG)] = False
    """The ids that end a turn do not end the reply."""
    n: Annotated[int, RequestField(Whole(1, 2**31))] = 1
    best_of: Annotated[int | None, RequestField(Whole(1, 2**31))] = None
    stream: Annotated[bool, RequestField(FLAG)] = False
    include_usage: bool = False
    logprobs: Annotated[bool, RequestField(FLAG)] = False
    prompt_logprobs: Annotated[int | None, RequestField(Whole(0, MOST_TOP_LOGPROBS))] = None
    """The logprobs of the prompt's ids are told, and so many of the most probable beside each."""
    return_token_ids: Annotated[bool, RequestField(FLAG)] = False
    return_tokens_as_token_ids: Annotated[bool, RequestField(FLAG)] = False
    """Tokens of logprobs are told as `token_id:N`."""
    max_tokens: Annotated[int | None, RequestField(AT_LEAST_ONE, _max_tokens)] = None
    include_stop_str_in_output: Annotated[bool, RequestField(FLAG)] = False
    """The stop string that ended a text is told with it."""
    metadata: Annotated[dict[str, str] | None, RequestField(METADATA)] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, RequestField(OBJECT, _template_arguments)] = None
    """What the chat format is told for this request, over what the model says."""
    size: int = 0
    """Characters of messages and tools, about: so long takes writing the prompt."""
    reasoning_effort: Annotated[str | None, RequestField(EFFORT)] = None
    """The level of reasoning effort. Only a chat format that has the notion is given it."""
    effort_field: str = "reasoning_effort"
    """What asked for it."""
    sample_hint: str | None = None
    """The sample that the newest assistant message says it is."""
    left_out: LeftOutParts | None = None
    """Notes what does not act. None: that is refused."""

    @property
    def read_calls(self) -> bool:
        """False (tool_choice none): the tools are shown to the model, but nothing is read as a call."""
        return self.tool_choice.mode != "none"

    @property
    def optional_arguments(self) -> dict[str, Any]:
        """Arguments of a template that are dropped where it has none of their name."""
        effort = self.reasoning_effort
        if effort is None:
            return {}
        return {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}


CHAT = RequestSchema(
    {
        **declared_fields(ChatRequest),
        "max_completion_tokens": RequestField(AT_LEAST_ONE, _max_tokens),
        "response_format": RequestField(_AN_OBJECT, _response_format),
        **{f"guided_{kind}": one for kind, one in _GUIDED.items()},
        "structured_outputs": RequestField(_AN_OBJECT, _structured_outputs),
        "stream_options": RequestField(OBJECT, _stream_options),
        "echo": RequestField(Idle("a reply goes on from no message", False)),
        "add_special_tokens": RequestField(Idle("the chat format writes them", False)),
    },
    required=("model", "messages"),
    elsewhere=("prompt", "input", "instructions", "system"),
)


def read_chat_request(body: Any, *, max_n: int, left_out: LeftOutParts | None = None) -> ChatRequest:
    """The request of a decoded JSON body. left_out: notes unknown fields, which are refused without it.

    Raises: RequestError naming the field.
    """
    check_object(body)
    request = ChatRequest(left_out=left_out)
    CHAT.read(request, body, left_out)
    _check_together(request, max_n)
    _check_choice(request)
    request.sample_hint = sample_hint(body["messages"])
    return request


def _check_together(request: ChatRequest, max_n: int) -> None:
    if request.n > max_n:
        refuse(f"n = {request.n} is more than {max_n}", "n")
    if request.top_logprobs and not request.logprobs:
        refuse("top_logprobs needs logprobs = true", "top_logprobs")
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        refuse(
            f"min_tokens = {request.min_tokens} is more than max_tokens = {request.max_tokens}", "min_tokens"
        )
    if request.stream and request.prompt_logprobs is not None:
        refuse(
            "a stream does not tell the prompt's logprobs: leave out stream or prompt_logprobs",
            "prompt_logprobs",
            "unsupported_parameter",
        )
    if request.best_of not in (None, request.n):
        refuse(
            f"best_of = {request.best_of} differs from n = {request.n}: every sample is returned, so that it "
            "can be trained; ask for n and choose",
            "best_of",
            "unsupported_parameter",
        )
    _check_ends(request)


def _check_ends(request: ChatRequest) -> None:
    """Checks that only one field decides where a reply may end."""
    demand = request.constrained_by or ("tool_choice" if request.tool_choice.mode == "required" else "")
    asked = {"min_tokens": request.min_tokens, "ignore_eos": request.ignore_eos}
    for name, value in asked.items():
        if value and demand:
            refuse(
                f"{name} = {value!r} with {demand}: what the reply must look like alone says where it may "
                f"end; leave {name} out, or put the length into the schema or the grammar",
                name,
            )
