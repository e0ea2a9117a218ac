"""A chat completion request is read into a `ChatRequest`, by hand, because it is on the way of every sample.

Each field acts, or `OTHER_FIELDS` says what becomes of it. A null is a field that was not given. The readers
come in three parts: single values; the form of the reply (its format, its calls, its tokens); all of them
together, by field (`_FIELDS`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from art.engine.constraints import LONGEST_CONSTRAINT
from art.engine.protocol import Constraint
from art.errors import RequestError
from art.server.chat.request_fields import (
    check_other_field,
    message_size,
    read_messages,
    read_tools,
    refuse,
    sample_hint,
)
from art.server.ledger.stitching import tools_key_and_size
from art.wire.sampling import (
    MOST_TOP_LOGPROBS,
    PARAMETERS,
    Biases,
    Number,
    SamplingParameters,
    Texts,
    TokenIds,
    Whole,
)

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Of reasoning, as OpenAI and vLLM have them."""
MOST_ARGUMENTS = 128
"""Of a chat template."""

Reader = Callable[["ChatRequest", str, Any], None]


def flag_reader(attribute: str) -> Reader:
    def read(request: ChatRequest, name: str, value: Any) -> None:
        if not isinstance(value, bool):
            refuse(f"{name} must be true or false, not {value!r}", name)
        setattr(request, attribute, value)

    return read


def whole_reader(attribute: str, least: int, most: int) -> Reader:
    def read(request: ChatRequest, name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            refuse(f"{name} must be a whole number from {least} to {most}, not {value!r}", name)
        setattr(request, attribute, value)

    return read


def sampling_reader(attribute: str, values: Number | Whole | Texts | TokenIds | Biases) -> Reader:
    """The reader of a declared parameter."""
    match values:
        case Number():
            return _number_reader(attribute, values)
        case Whole():
            return _whole_or_unset_reader(attribute, values)
        case Texts():
            return _texts_reader(attribute, values)
        case TokenIds():
            return _token_ids_reader(attribute, values)
        case Biases():
            return _biases_reader(attribute, values)


def _number_reader(attribute: str, values: Number) -> Reader:
    least, most, above = values.least, values.most, values.above

    def read(request: ChatRequest, name: str, value: Any) -> None:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not fits or not least <= value <= most or (above and value == least):
            start = f"above {least:g}" if above else f"from {least:g}"
            refuse(f"{name} must be a number {start} to {most:g}, not {value!r}", name)
        setattr(request, attribute, float(value))

    return read


def _whole_or_unset_reader(attribute: str, values: Whole) -> Reader:
    read_whole, unset = whole_reader(attribute, values.least, values.most), values.unset
    if unset is None:
        return read_whole

    def read(request: ChatRequest, name: str, value: Any) -> None:
        if value != unset or isinstance(value, bool):
            read_whole(request, name, value)

    return read


def _texts_reader(attribute: str, values: Texts) -> Reader:
    most = values.most

    def read(request: ChatRequest, name: str, value: Any) -> None:
        texts = [value] if isinstance(value, str) else value
        fits = isinstance(texts, list) and len(texts) <= most
        if not fits or not all(isinstance(text, str) and text for text in texts):
            strings = f"a string or a list of up to {most} strings, none empty"
            refuse(f"{name} must be {strings}, not {value!r}", name)
        setattr(request, attribute, tuple(texts))

    return read


def _token_ids_reader(attribute: str, values: TokenIds) -> Reader:
    most = values.most

    def read(request: ChatRequest, name: str, value: Any) -> None:
        if (
            not isinstance(value, list)
            or len(value) > most
            or not all(type(one) is int and 0 <= one < 2**31 for one in value)
        ):
            refuse(f"{name} must be a list of up to {most} token ids, not {value!r}", name)
        setattr(request, attribute, tuple(value))

    return read


def _biases_reader(attribute: str, values: Biases) -> Reader:
    """Ids that the model does not have it refuses."""
    most, highest = values.most, values.highest

    def read(request: ChatRequest, name: str, value: Any) -> None:
        if not isinstance(value, dict) or len(value) > most:
            refuse(f"{name} must be an object of up to {most} ids with their biases", name)
        pairs = []
        for key, bias in value.items():
            fits = isinstance(bias, int | float) and not isinstance(bias, bool) and math.isfinite(bias)
            if not (key.isascii() and key.isdecimal() and len(key) < 10):
                refuse(f"{name} has the key {key!r}, which is no token id", name)
            if not fits or abs(bias) > highest:
                bounds = f"from -{highest:g} to {highest:g}"
                refuse(f"{name}[{key!r}] must be a number {bounds}, not {bias!r}", name)
            if bias:
                pairs.append((int(key), float(bias)))
        setattr(request, attribute, tuple(sorted(pairs)))

    return read


def read_effort(request: ChatRequest, name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in EFFORTS:
        refuse(f"{request.effort_field} must be one of {', '.join(EFFORTS)}, not {value!r:.200}", name)
    request.effort = value


def refuse_unless_idle(why: str, *idle: Any) -> Reader:
    """A field that acts in another dialect."""

    def read(request: ChatRequest, name: str, value: Any) -> None:
        if value not in idle:
            refuse(f"{name} = {value!r:.200} is not supported: {why}", name, "unsupported_parameter")

    return read


def read_max_tokens(request: ChatRequest, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        refuse(f"{name} must be a whole number of at least 1, not {value!r}", name)
    if request.max_tokens not in (None, value):
        refuse("max_tokens and max_completion_tokens differ; send one of them", "max_completion_tokens")
    request.max_tokens = value


_IDLE_OPTIONS = ("include_usage", "include_obfuscation", "continuous_usage_stats")
"""Of a stream, where they ask for nothing."""


def read_stream_options(request: ChatRequest, name: str, value: Any) -> None:
    if not isinstance(value, dict):
        refuse(f"stream_options must be an object, not {value!r}", name)
    for option, wanted in value.items():
        if option == "include_usage" and isinstance(wanted, bool):
            request.include_usage = wanted
        elif option not in _IDLE_OPTIONS or wanted:
            refuse(
                f"stream_options.{option} = {wanted!r} is not supported; supported: include_usage",
                f"stream_options.{option}",
                "unsupported_parameter",
            )


def read_metadata(request: ChatRequest, name: str, value: Any) -> None:
    if not isinstance(value, dict) or len(value) > 16 or not all(isinstance(v, str) for v in value.values()):
        refuse(f"metadata must be an object of up to 16 strings, not {value!r}", name)
    request.metadata = value


def read_template_arguments(request: ChatRequest, name: str, value: Any) -> None:
    if not isinstance(value, dict):
        refuse(f"{name} must be an object, not {value!r}", name)
    if len(value) > MOST_ARGUMENTS:
        refuse(f"{name} has {len(value)} entries; at most {MOST_ARGUMENTS} are taken", name)
    request.template_arguments = value


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


def _json_object(request: ChatRequest, name: str, value: Any) -> None:
    if value is not True:
        refuse(f"{name} must be true, not {value!r}", name)
    _constrain(request, name, _ANY_OBJECT)


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
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        refuse(f"{name} cannot be written as JSON again: {error}", name)


@dataclass(kw_only=True, slots=True)
class ChatRequest(SamplingParameters):
    """What is asked for, checked and in one spelling. `stop_token_ids` are besides those that end a turn."""

    model: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    tools_key: bytes = b""
    tool_choice: ToolChoice = FREE_CHOICE
    parallel_calls: bool = True
    """False: a reply has at most one call."""
    constrained_by: str = ""
    """The field that says what the text of the reply must look like."""
    ignore_eos: bool = False
    """The ids that end a turn do not end the reply."""
    n: int = 1
    best_of: int | None = None
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    prompt_logprobs: int | None = None
    """The logprobs of the prompt's ids are told, and so many of the most probable beside each."""
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    """Tokens of logprobs are told as `token_id:N`."""
    max_tokens: int | None = None
    keep_stop: bool = False
    """The stop string that ended a text is told with it."""
    metadata: dict[str, str] | None = None
    template_arguments: dict[str, Any] | None = None
    """What the chat format is told for this request, over what the model says."""
    size: int = 0
    """Characters of messages and tools, about: so long takes writing the prompt."""
    effort: str | None = None
    """Of reasoning: told to a format that has the notion, and to no other."""
    effort_field: str = "reasoning_effort"
    """What asked for it."""
    sample_hint: str | None = None
    """The sample that the newest assistant message says it is."""

    @property
    def read_calls(self) -> bool:
        """False (tool_choice none): the tools are shown to the model, but nothing is read as a call."""
        return self.tool_choice.mode != "none"

    @property
    def wishes(self) -> dict[str, Any]:
        """Arguments of a template that are dropped where it has none of their name."""
        if self.effort is None:
            return {}
        return {"enable_thinking": False} if self.effort == "none" else {"reasoning_effort": self.effort}


def read_chat_request(body: Any, *, max_n: int) -> ChatRequest:
    """The request of a decoded JSON body. Raises: RequestError naming the field."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object", status=400, code="invalid_json")
    request = ChatRequest()
    for name, value in body.items():
        reader = _FIELDS.get(name)
        if reader is not None:
            if value is not None or name in _REQUIRED:
                reader(request, name, value)
        else:
            check_other_field(name, value, _FIELDS)
    for name in _REQUIRED:
        if name not in body:
            refuse(f"{name!r} is missing", name, "missing_parameter")
    _check_together(request, body, max_n)
    check_choice(request)
    request.sample_hint = sample_hint(body["messages"])
    return request


def _check_together(request: ChatRequest, body: dict[str, Any], max_n: int) -> None:
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
    """What says where a reply may end does so alone."""
    demand = request.constrained_by or ("tool_choice" if request.tool_choice.mode == "required" else "")
    asked = {"min_tokens": request.min_tokens, "ignore_eos": request.ignore_eos}
    for name, value in asked.items():
        if value and demand:
            refuse(
                f"{name} = {value!r} with {demand}: what the reply must look like alone says where it may "
                f"end; leave {name} out, or put the length into the schema or the grammar",
                name,
            )


def _model(request: ChatRequest, name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        refuse(f"model must be a name, not {value!r}", name)
    request.model = value


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


_REQUIRED = ("model", "messages")

_FIELDS: dict[str, Reader] = {
    "model": _model,
    "messages": _messages,
    "tools": _tools,
    "tool_choice": read_tool_choice,
    "parallel_tool_calls": flag_reader("parallel_calls"),
    "response_format": read_response_format,
    "guided_json": read_guided_json,
    "guided_regex": read_guided_regex,
    "guided_choice": read_guided_choice,
    "guided_grammar": read_guided_grammar,
    "structured_outputs": read_structured_outputs,
    **{name: sampling_reader(name, one.values) for name, one in PARAMETERS.items()},
    "n": whole_reader("n", 1, 2**31),
    "stream": flag_reader("stream"),
    "stream_options": read_stream_options,
    "logprobs": flag_reader("logprobs"),
    "max_tokens": read_max_tokens,
    "max_completion_tokens": read_max_tokens,
    "metadata": read_metadata,
    "chat_template_kwargs": read_template_arguments,
    "reasoning_effort": read_effort,
    "best_of": whole_reader("best_of", 1, 2**31),
    "ignore_eos": flag_reader("ignore_eos"),
    "include_stop_str_in_output": flag_reader("keep_stop"),
    "prompt_logprobs": whole_reader("prompt_logprobs", 0, MOST_TOP_LOGPROBS),
    "return_token_ids": flag_reader("return_token_ids"),
    "return_tokens_as_token_ids": flag_reader("tokens_as_ids"),
    "echo": refuse_unless_idle("a reply goes on from no message", False),
    "add_special_tokens": refuse_unless_idle("the chat format writes them", False),
}
