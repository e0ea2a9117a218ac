"""What checking the fields of a chat request costs, in microseconds, without its messages: by pydantic field
by field, as the server does it, or a body at once, and by msgspec. Run by hand:

    pip install msgspec; python -m bench.serving.request_fields
"""

from __future__ import annotations

from collections.abc import Callable
from timeit import repeat
from typing import Annotated, Any, NotRequired, TypeAlias

import msgspec
from pydantic import ConfigDict, Field, TypeAdapter, create_model
from typing_extensions import TypedDict

from art.server.chat.chat_request import CHAT
from art.server.chat.request_fields import OTHER_FIELDS

Check: TypeAlias = Callable[[dict[str, Any]], object]
MESSAGES = [{"role": "user", "content": "respond with yes, no or maybe"}]
SMALL: dict[str, Any] = {"model": "m", "messages": MESSAGES, "max_tokens": 8}
LARGE: dict[str, Any] = {
    **SMALL,
    **{"temperature": 0.7, "top_p": 0.9, "seed": 3, "frequency_penalty": 0.1},
    **{"logprobs": True, "stream": False, "n": 1, "stop": ["x"]},
}
KINDS: dict[str, Any] = {
    "model": str,
    "messages": list[Any],
    **dict.fromkeys(("logprobs", "stream", "ignore_eos", "echo"), bool),
    **dict.fromkeys(("max_tokens", "seed", "n", "best_of", "top_k", "min_tokens"), int),
    **dict.fromkeys(("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty"), float),
    "stop": str | list[str],
    "metadata": dict[str, str],
    **dict.fromkeys(OTHER_FIELDS, Any),
}
STRICT = ConfigDict(strict=True, extra="forbid")


def by_field(body: dict[str, Any]) -> None:
    for name, value in body.items():
        CHAT.fields[name].values.read(name, value)


def as_typed_dict() -> Check:
    fields = {name: kind if name in SMALL else NotRequired[kind | None] for name, kind in bounded(Field)}
    made = TypedDict("made", fields)  # type: ignore[misc]
    made.__pydantic_config__ = STRICT  # type: ignore[attr-defined]
    return TypeAdapter(made).validate_python


def as_model() -> Check:
    fields: dict[str, Any] = {
        name: (kind, ...) if name in SMALL else (kind | None, None) for name, kind in bounded(Field)
    }
    return create_model("made", __config__=STRICT, **fields).model_validate


def as_struct() -> Check:
    kinds = bounded(msgspec.Meta)
    fields = [(name, kind) if name in SMALL else (name, kind | None, None) for name, kind in kinds]
    made = msgspec.defstruct("made", fields, forbid_unknown_fields=True, kw_only=True)
    return lambda body: msgspec.convert(body, made)


def bounded(mark: Any) -> list[tuple[str, Any]]:
    """The kinds, numbers within bounds."""
    bounds = {int: mark(ge=0, le=2**31), float: mark(ge=0, le=100)}
    return [(name, Annotated[kind, bounds[kind]] if kind in bounds else kind) for name, kind in KINDS.items()]


def cost(check: Check, body: dict[str, Any]) -> float:
    return min(repeat(lambda: check(body), number=10_000, repeat=21)) * 100


WAYS: dict[str, Check] = {
    "pydantic, a type for each field": by_field,
    "pydantic, one `TypedDict` for the body": as_typed_dict(),
    "pydantic, one model for the body": as_model(),
    "`msgspec`, one `Struct` for the body": as_struct(),
}

if __name__ == "__main__":
    for way, check in WAYS.items():
        print(f"| {way} | {cost(check, SMALL):.1f} µs | {cost(check, LARGE):.1f} µs |")
