"""A chat completion request: read by hand, because it is on the way of every sample.

Each field acts, or `other_fields` says what becomes of it. A null is a field that was not given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from art.engine.limits import HIGHEST_PENALTY, HIGHEST_REPETITION_PENALTY, MOST_TOP_LOGPROBS
from art.engine.protocol import Constraint
from art.errors import RequestError
from art.server.dialects.chat_fields import (
    flag_reader,
    number_reader,
    read_effort,
    read_max_tokens,
    read_metadata,
    read_stop,
    read_stream_options,
    read_template_arguments,
    read_top_k,
    refuse_unless_idle,
    whole_reader,
)
from art.server.dialects.chat_format import (
    FREE_CHOICE,
    ToolChoice,
    check_choice,
    read_guided_choice,
    read_guided_grammar,
    read_guided_json,
    read_guided_regex,
    read_logit_bias,
    read_response_format,
    read_stop_token_ids,
    read_structured_outputs,
    read_tool_choice,
)
from art.server.dialects.chat_messages import message_size, read_messages, read_tools, sample_hint
from art.server.dialects.other_fields import check_other
from art.server.dialects.refusal import refuse
from art.server.ledger.conversation import tools_key_and_size


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
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False
    """The ids that end a turn do not end the reply."""
    n: int = 1
    best_of: int | None = None
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    """The logprobs of the prompt's ids are told, and so many of the most probable beside each."""
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    """Tokens of logprobs are told as `token_id:N`."""
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    keep_stop: bool = False
    """The stop string that ended a text is told with it."""
    stop_token_ids: tuple[int, ...] = ()
    """Besides those that end a turn."""
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
            check_other(name, value, _FIELDS)
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

_FIELDS: dict[str, Callable[[ChatRequest, str, Any], None]] = {
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
    "logit_bias": read_logit_bias,
    "frequency_penalty": number_reader("frequency_penalty", -HIGHEST_PENALTY, HIGHEST_PENALTY),
    "presence_penalty": number_reader("presence_penalty", -HIGHEST_PENALTY, HIGHEST_PENALTY),
    "repetition_penalty": number_reader("repetition_penalty", 0.0, HIGHEST_REPETITION_PENALTY, above=True),
    "min_tokens": whole_reader("min_tokens", 0, 2**31 - 1),
    "stop_token_ids": read_stop_token_ids,
    "n": whole_reader("n", 1, 2**31),
    "stream": flag_reader("stream"),
    "stream_options": read_stream_options,
    "logprobs": flag_reader("logprobs"),
    "top_logprobs": whole_reader("top_logprobs", 0, MOST_TOP_LOGPROBS),
    "max_tokens": read_max_tokens,
    "max_completion_tokens": read_max_tokens,
    "temperature": number_reader("temperature", 0.0, 100.0),
    "top_p": number_reader("top_p", 0.0, 1.0, above=True),
    "top_k": read_top_k,
    "min_p": number_reader("min_p", 0.0, 1.0),
    "seed": whole_reader("seed", -(2**63), 2**63 - 1),
    "stop": read_stop,
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
