"""An `openai.AsyncOpenAI` that names the rollout with each request, and wastes no time to a server nearby."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import random
from collections.abc import Awaitable, Callable
from functools import cached_property, lru_cache, partial
from importlib import import_module
from inspect import signature
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import openai
from openai.resources.chat import AsyncChat
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ValidationError

from art.capture import current_rollout
from art.errors import ConfigurationError
from art.remote.lane import Lane, LaneError, LostConnectionError, Reply, file_budget
from art.wire.headers import ROLLOUT_HEADER

TIMEOUT_S = 1200.0
CONNECT_TIMEOUT_S = 5.0
MAX_RETRIES = 10
"""openai waits as `Retry-After` says, at most 8 s without one: enough for a long queue or a server's
restart.
"""

MAX_LOSSES = 5
PATIENCE_S = {429: TIMEOUT_S, 503: 120.0}
"""How long `Retry-After` is obeyed: a full queue empties, a worker that starts again comes soon or never."""

Revive = Callable[[], Awaitable[None]]

_LEFT_TO_OPENAI = frozenset({"stream", "extra_headers", "extra_query"})
_STAINLESS = "x-stainless-"


class RolloutOpenAI(openai.AsyncOpenAI):
    """The ordinary client. Plain chat completions to a server on this machine take the short way (`Lane`).

    Streams, raw responses, own headers and every failure take the ordinary way, so that errors,
    retries and their classes are those of `openai`. `revive` is awaited when nobody answers: it may start the
    server again.
    """

    lane: Lane | None = None
    revive: Revive | None = None

    @cached_property
    def chat(self) -> AsyncChat:
        return _Chat(self)

    @cached_property
    def lane_head(self) -> bytes:
        """The request's head up to the rollout and the length, which differ each time."""
        lines = [f"POST {self.base_url.raw_path.decode().rstrip('/')}/chat/completions HTTP/1.1"]
        headers = {"host": self.base_url.netloc.decode(), "authorization": f"Bearer {self.api_key}"}
        headers |= {
            name.lower(): value for name, value in self.default_headers.items() if isinstance(value, str)
        }
        for name, value in headers.items():
            if not value.isprintable():
                raise ConfigurationError(f"the header {name!r} has a line break or another control character")
            # The platform's headers are for OpenAI; our server has no use for them.
            if not name.startswith(_STAINLESS):
                lines.append(f"{name}: {value}")
        return "\r\n".join(lines).encode("latin-1")

    def copy(self, **options: Any) -> RolloutOpenAI:
        """As in `openai`; the copy also names rollouts. With options of its own it takes the ordinary way."""
        copied = super().copy(**options)
        copied.lane, copied.revive = (None if options else self.lane), self.revive
        return copied

    with_options = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> RolloutOpenAI:
        return self  # connections are shared, not copied


class _Chat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncCompletions:
        return _Completions(self._client)


class _Completions(AsyncCompletions):
    async def create(self, **options: Any) -> Any:
        client = self._client
        if isinstance(client, RolloutOpenAI) and client.lane is not None:
            options = _listed(options)
            seconds = _seconds(options.get("timeout"))
            body = _plain_body(options) if seconds is not None else None
            if body is not None and seconds is not None:
                completion = await _ask(client, client.lane, body, seconds)
                if completion is not None:
                    return completion
        return await super().create(**options)


def _seconds(timeout: Any) -> float | None:
    """How long one try may take; None for a timeout that only openai understands."""
    if timeout is None or isinstance(timeout, openai.NotGiven | openai.Omit):
        return TIMEOUT_S
    return float(timeout) if isinstance(timeout, int | float) else None


@lru_cache(maxsize=1)
def _known_options() -> frozenset[str]:
    return frozenset(signature(AsyncCompletions.create).parameters) - {"self"}


def _listed(options: dict[str, Any]) -> dict[str, Any]:
    """Messages may come as any iterable; two ways may read them."""
    messages = options.get("messages")
    return (
        options if isinstance(messages, list) or messages is None else {**options, "messages": list(messages)}
    )


def _plain_body(options: dict[str, Any]) -> bytes | None:
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


async def _ask(client: RolloutOpenAI, lane: Lane, body: bytes, timeout: float) -> ChatCompletion | None:
    """The completion, or None when the ordinary way has to try. `timeout` is that of one try, in seconds."""
    rollout = current_rollout()
    named = f"\r\n{ROLLOUT_HEADER}: {rollout}" if rollout is not None else ""
    head = client.lane_head + f"{named}\r\ncontent-length: {len(body)}\r\n\r\n".encode("latin-1")
    asked = asyncio.get_running_loop().time()
    losses = 0
    while True:
        try:
            reply = await lane.post(head + body, timeout=timeout)
        except LostConnectionError:
            losses += 1
            if client.revive is None or losses > MAX_LOSSES:
                return None
            await client.revive()
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


def _is_near(url: str) -> bool:
    """Whether the short way may be taken: plain HTTP to this machine, or to any host when no proxy is set."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        return False
    try:
        loopback = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        loopback = False
    return loopback or not getproxies()


def openai_client(*, base_url: str, api_key: str, revive: Revive | None = None) -> RolloutOpenAI:
    """A client for ART's server at `base_url` (".../v1"). Requests inside a rollout carry its id."""
    near, parts = _is_near(base_url), urlsplit(base_url)
    transport = http_client(trust_env=not near, name_rollouts=True)
    client = RolloutOpenAI(api_key=api_key, base_url=base_url, max_retries=MAX_RETRIES, http_client=transport)
    client.lane = Lane(parts.hostname or "", parts.port or 80) if near else None
    client.revive = revive
    return client


def plain_client(*, base_url: str, api_key: str) -> openai.AsyncOpenAI:
    """A client for anybody's endpoint, with room for thousands of requests."""
    transport = http_client(trust_env=True, name_rollouts=False)
    return openai.AsyncOpenAI(api_key=api_key, base_url=base_url, http_client=transport)


def http_client(*, trust_env: bool, name_rollouts: bool) -> Any:
    """openai's own HTTP client class with room for thousands of connections.

    The package behind it is httpx2 or httpx, as openai's version has it.
    """
    kind = openai.DefaultAsyncHttpxClient
    package = import_module(kind.__mro__[1].__module__.split(".")[0])
    room = file_budget()

    async def name_rollout(request: Any) -> None:
        rollout = current_rollout()
        if rollout is not None:
            request.headers.setdefault(ROLLOUT_HEADER, rollout)

    return kind(
        timeout=package.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        limits=package.Limits(max_connections=room, max_keepalive_connections=room),
        trust_env=trust_env,
        event_hooks={"request": [name_rollout] if name_rollouts else []},
    )
