"""Readers of single fields of a request: each checks a value and keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from art.server.dialects.refusal import refuse

if TYPE_CHECKING:
    from art.server.dialects.chat_request import ChatRequest

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Of reasoning, as OpenAI and vLLM have them."""
MOST_ARGUMENTS = 128
"""Of a chat template."""


def flag_reader(attribute: str) -> Callable[[ChatRequest, str, Any], None]:
    def read(request: ChatRequest, name: str, value: Any) -> None:
        if not isinstance(value, bool):
            refuse(f"{name} must be true or false, not {value!r}", name)
        setattr(request, attribute, value)

    return read


def whole_reader(attribute: str, least: int, most: int) -> Callable[[ChatRequest, str, Any], None]:
    def read(request: ChatRequest, name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            refuse(f"{name} must be a whole number from {least} to {most}, not {value!r}", name)
        setattr(request, attribute, value)

    return read


def number_reader(
    attribute: str, least: float, most: float, *, above: bool = False
) -> Callable[[ChatRequest, str, Any], None]:
    def read(request: ChatRequest, name: str, value: Any) -> None:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not fits or not least <= value <= most or (above and value == least):
            start = f"above {least:g}" if above else f"from {least:g}"
            refuse(f"{name} must be a number {start} to {most:g}, not {value!r}", name)
        setattr(request, attribute, float(value))

    return read


def read_effort(request: ChatRequest, name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in EFFORTS:
        refuse(f"{request.effort_field} must be one of {', '.join(EFFORTS)}, not {value!r:.200}", name)
    request.effort = value


def refuse_unless_idle(why: str, *idle: Any) -> Callable[[ChatRequest, str, Any], None]:
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


def read_top_k(request: ChatRequest, name: str, value: Any) -> None:
    if value == -1 and not isinstance(value, bool):
        return
    whole_reader("top_k", 0, 2**31 - 1)(request, name, value)


def read_stop(request: ChatRequest, name: str, value: Any) -> None:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > 16 or not all(isinstance(s, str) and s for s in stops):
        refuse(f"stop must be a string or a list of up to 16 strings, none empty, not {value!r}", name)
    request.stop = tuple(stops)


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
