"""A plain chat completion over a `Lane`: written and read without the HTTP client's work."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from inspect import signature
from typing import Any

import openai
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ValidationError

from art.capture import current_rollout
from art.errors import ConfigurationError
from art.remote.lane import Lane, LaneError, LostConnectionError, Reply
from art.wire.headers import ROLLOUT_HEADER

TIMEOUT_S = 1200.0
MAX_LOSSES = 5
PATIENCE_S = {429: TIMEOUT_S, 503: 120.0}
"""How long `Retry-After` is obeyed: a full queue empties, a worker that starts again comes soon or never."""

Revive = Callable[[], Awaitable[object]]

_LEFT_TO_OPENAI = frozenset({"stream", "extra_headers", "extra_query"})
_STAINLESS = "x-stainless-"


def request_head(client: openai.AsyncOpenAI) -> bytes:
    """A request's head up to the rollout and the length, which differ each time."""
    lines = [f"POST {client.base_url.raw_path.decode().rstrip('/')}/chat/completions HTTP/1.1"]
    headers = {"host": client.base_url.netloc.decode(), "authorization": f"Bearer {client.api_key}"}
    headers |= {
        name.lower(): value for name, value in client.default_headers.items() if isinstance(value, str)
    }
    for name, value in headers.items():
        if not value.isprintable():
            raise ConfigurationError(f"the header {name!r} has a line break or another control character")
        # The platform's headers are for OpenAI; our server has no use for them.
        if not name.startswith(_STAINLESS):
            lines.append(f"{name}: {value}")
    return "\r\n".join(lines).encode("latin-1")


def seconds_of(timeout: Any) -> float | None:
    """How long one try may take; None for a timeout that only openai understands."""
    if timeout is None or isinstance(timeout, openai.NotGiven | openai.Omit):
        return TIMEOUT_S
    return float(timeout) if isinstance(timeout, int | float) else None


@lru_cache(maxsize=1)
def _known_options() -> frozenset[str]:
    return frozenset(signature(AsyncCompletions.create).parameters) - {"self"}


def plain_body(options: dict[str, Any]) -> bytes | None:
    """The request as JSON, or None when it has something that openai must look at (or refuse)."""
    known, unset = _known_options(), openai.NotGiven | openai.Omit
    given = {key: value for key, value in options.items() if not isinstance(value, unset)}
    if not given.keys() <= known or "messages" not in given or "model" not in given:
        return None
    if any(given.get(key) for key in _LEFT_TO_OPENAI) or isinstance(given.get("response_format"), type):
        return None
    extra = given.pop("extra_body", None)
    body = {key: value for key, value in given.items() if key not in {*_LEFT_TO_OPENAI, "timeout"}}
    body.update(extra or {})
    write = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)
    try:
        return write(body).encode()
    except (TypeError, ValueError):
        return None  # openai has the words for what is wrong with it


def _plain(value: Any) -> Any:
    """Replies that are sent back as messages are pydantic objects; openai sends them the same way."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True, mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} is left to openai")


async def ask(
    lane: Lane, head: bytes, body: bytes, *, timeout: float, revive: Revive | None
) -> ChatCompletion | None:
    """The completion, or None when the ordinary way has to try. `timeout` is that of one try, in seconds."""
    rollout = current_rollout()
    named = f"\r\n{ROLLOUT_HEADER}: {rollout}" if rollout is not None else ""
    request = head + f"{named}\r\ncontent-length: {len(body)}\r\n\r\n".encode("latin-1") + body
    asked = asyncio.get_running_loop().time()
    losses = 0
    while True:
        try:
            reply = await lane.post(request, timeout=timeout)
        except LostConnectionError:
            losses += 1
            if revive is None or losses > MAX_LOSSES:
                return None
            await revive()
            await asyncio.sleep(0.05 * 2**losses)  # a dying process may still count as running
            continue
        except LaneError:
            return None
        if reply.status == 200:
            return _completion(reply)
        pause, limit = _retry_after(reply), PATIENCE_S.get(reply.status, 0.0)
        if pause is None or asyncio.get_running_loop().time() + pause > asked + limit:
            return None
        await asyncio.sleep(pause)


def _completion(reply: Reply) -> ChatCompletion:
    try:
        completion = ChatCompletion.model_validate_json(reply.body)
    except ValidationError:
        completion = ChatCompletion.construct(**json.loads(reply.body))
    completion._request_id = reply.header(b"x-request-id")
    return completion


def _retry_after(reply: Reply) -> float | None:
    """Seconds to wait if the server said so; spread out, so that all waiting requests do not return at
    once.
    """
    try:
        return min(60.0, max(0.05, float(reply.header(b"retry-after") or ""))) * random.uniform(1.0, 1.25)
    except ValueError:
        return None
