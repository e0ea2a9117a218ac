"""A chat completion request: read by hand, because it is on the way of every sample.

Each field acts, is known to mean nothing here (`user`), or is refused by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from art.engine.protocol import Constraint
from art.errors import RequestError
from art.server.dialects import chat_format
from art.server.dialects.chat_format import FREE_CHOICE, ToolChoice
from art.server.dialects.chat_messages import read_messages, read_tools, sample_hint
from art.server.dialects.refusal import refuse
from art.server.ledger.conversation import tools_key


@dataclass(kw_only=True, slots=True)
class ChatRequest:
    """What is asked for, checked and in one spelling."""

    model: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    tools_key: bytes = b""
    tool_choice: ToolChoice = FREE_CHOICE
    parallel_calls: bool = True
    """False: a reply has at most one call."""
    constraint: Constraint | None = None
    """What the text of the reply must look like."""
    constrained_by: str = ""
    """The field that says so."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Besides those that end a turn."""
    metadata: dict[str, str] | None = None
    template_arguments: dict[str, Any] | None = None
    """What the chat format is told for this request, over what the model says."""
    sample_hint: str | None = None
    """The sample that the newest assistant message says it is."""

    @property
    def read_calls(self) -> bool:
        """False (tool_choice none): the tools are shown to the model, but nothing is read as a call."""
        return self.tool_choice.mode != "none"


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
        elif name in _NEUTRAL:
            if value is not None and value not in _NEUTRAL[name]:
                refuse(f"{name} = {value!r} is not supported", name, "unsupported_parameter")
        elif name not in _MEANINGLESS:
            known = ", ".join(sorted(_FIELDS))
            refuse(f"{name!r} is not supported; supported: {known}", name, "unsupported_parameter")
    for name in _REQUIRED:
        if name not in body:
            refuse(f"{name!r} is missing", name, "missing_parameter")
    if request.n > max_n:
        refuse(f"n = {request.n} is more than {max_n}", "n")
    if body.get("top_logprobs") is not None and not request.logprobs:
        refuse("top_logprobs needs logprobs = true", "top_logprobs")
    chat_format.check_choice(request)
    request.sample_hint = sample_hint(body["messages"])
    return request


def _model(request: ChatRequest, name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        refuse(f"model must be a name, not {value!r}", name)
    request.model = value


def _messages(request: ChatRequest, name: str, value: Any) -> None:
    request.messages = read_messages(value)


def _tools(request: ChatRequest, name: str, value: Any) -> None:
    request.tools = read_tools(value)
    try:
        request.tools_key = tools_key(request.tools)
    except TypeError as error:
        refuse(f"tools cannot be written as JSON again: {error}", name)


def _flag(attribute: str) -> Callable[[ChatRequest, str, Any], None]:
    def read(request: ChatRequest, name: str, value: Any) -> None:
        if not isinstance(value, bool):
            refuse(f"{name} must be true or false, not {value!r}", name)
        setattr(request, attribute, value)

    return read


def _whole(attribute: str, least: int, most: int) -> Callable[[ChatRequest, str, Any], None]:
    def read(request: ChatRequest, name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            refuse(f"{name} must be a whole number from {least} to {most}, not {value!r}", name)
        setattr(request, attribute, value)

    return read


def _number(
    attribute: str, least: float, most: float, *, above: bool = False
) -> Callable[[ChatRequest, str, Any], None]:
    def read(request: ChatRequest, name: str, value: Any) -> None:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not fits or not least <= value <= most or (above and value == least):
            start = f"above {least:g}" if above else f"from {least:g}"
            refuse(f"{name} must be a number {start} to {most:g}, not {value!r}", name)
        setattr(request, attribute, float(value))

    return read


def _max_tokens(request: ChatRequest, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        refuse(f"{name} must be a whole number of at least 1, not {value!r}", name)
    if request.max_tokens not in (None, value):
        refuse("max_tokens and max_completion_tokens differ; send one of them", "max_completion_tokens")
    request.max_tokens = value


def _top_k(request: ChatRequest, name: str, value: Any) -> None:
    if value == -1 and not isinstance(value, bool):
        return
    _whole("top_k", 0, 2**31 - 1)(request, name, value)


def _top_logprobs(request: ChatRequest, name: str, value: Any) -> None:
    if value != 0 or isinstance(value, bool):
        refuse(
            f"top_logprobs = {value!r} is not supported: only the sampled token's logprob is known; send 0",
            name,
            "unsupported_parameter",
        )


def _stop(request: ChatRequest, name: str, value: Any) -> None:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > 16 or not all(isinstance(s, str) and s for s in stops):
        refuse(f"stop must be a string or a list of up to 16 strings, none empty, not {value!r}", name)
    request.stop = tuple(stops)


def _stream_options(request: ChatRequest, name: str, value: Any) -> None:
    if not isinstance(value, dict):
        refuse(f"stream_options must be an object, not {value!r}", name)
    for option, wanted in value.items():
        if option == "include_usage" and isinstance(wanted, bool):
            request.include_usage = wanted
        elif option != "include_obfuscation" or wanted:
            refuse(
                f"stream_options.{option} = {wanted!r} is not supported; supported: include_usage",
                f"stream_options.{option}",
                "unsupported_parameter",
            )


def _metadata(request: ChatRequest, name: str, value: Any) -> None:
    if not isinstance(value, dict) or len(value) > 16 or not all(isinstance(v, str) for v in value.values()):
        refuse(f"metadata must be an object of up to 16 strings, not {value!r}", name)
    request.metadata = value


def _template_arguments(request: ChatRequest, name: str, value: Any) -> None:
    if not isinstance(value, dict):
        refuse(f"{name} must be an object, not {value!r}", name)
    request.template_arguments = value


_REQUIRED = ("model", "messages")

_FIELDS: dict[str, Callable[[ChatRequest, str, Any], None]] = {
    "model": _model,
    "messages": _messages,
    "tools": _tools,
    "tool_choice": chat_format.tool_choice,
    "parallel_tool_calls": _flag("parallel_calls"),
    "response_format": chat_format.response_format,
    "guided_json": chat_format.guided_json,
    "guided_regex": chat_format.guided_regex,
    "guided_choice": chat_format.guided_choice,
    "guided_grammar": chat_format.guided_grammar,
    "structured_outputs": chat_format.structured_outputs,
    "logit_bias": chat_format.logit_bias,
    "stop_token_ids": chat_format.stop_token_ids,
    "n": _whole("n", 1, 2**31),
    "stream": _flag("stream"),
    "stream_options": _stream_options,
    "logprobs": _flag("logprobs"),
    "top_logprobs": _top_logprobs,
    "max_tokens": _max_tokens,
    "max_completion_tokens": _max_tokens,
    "temperature": _number("temperature", 0.0, 100.0),
    "top_p": _number("top_p", 0.0, 1.0, above=True),
    "top_k": _top_k,
    "min_p": _number("min_p", 0.0, 1.0),
    "seed": _whole("seed", -(2**63), 2**63 - 1),
    "stop": _stop,
    "metadata": _metadata,
    "chat_template_kwargs": _template_arguments,
}

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "modalities": (["text"],),
    # Of vLLM, whose clients add them to `extra_body`.
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
}
"""Fields that are accepted with the value that asks for nothing, as some clients always send it."""

_MEANINGLESS = frozenset({"user", "safety_identifier", "prompt_cache_key"})
"""Names of the caller for a provider's books: they never change a reply."""
