"""Clients of `openai`'s class: with room for thousands of requests, for any event loop, and observed.

`ObservedOpenAI` tells its observers of each chat completion and adds defaults to requests; `RolloutOpenAI`
names the rollout with each request and wastes no time to a server nearby.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import openai
from openai.resources.chat import AsyncChat
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion

from art.client.http.connection import (
    CONNECT_S,
    ERROR_KINDS,
    GONE_S,
    TIMEOUT_S,
    Absence,
    PerLoop,
    file_budget,
    straight_transport,
)
from art.client.http.fast_http import Lane, complete_over_lane, lane_to, request_head
from art.errors import ARTError, DiskError, WorkerError
from art.exchanges import AnsweredBy
from art.recording.captured_reply import hear_reply, note_call, read_completion
from art.recording.listeners import Listener, current_listener, listening
from art.recording.watched_bodies import watch_body
from art.rollout_tasks import current_rollout
from art.trajectories import get_messages
from art.types import sample_id
from art.wire.nested import deep_merge
from art.wire.rollouts import ROLLOUT_HEADER, SAMPLE_FIELD

REFRAMED = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers that describe a body as it travelled, not as it was read."""

WAITS = "art.waits"
"""The extension of a request that a server's restart must not lose."""
Revive = Callable[[], Awaitable[object]]


class ReplyTooLargeError(Exception):
    """A reply that goes on beyond what was allowed."""


class AnyLoopClient(openai.DefaultAsyncHttpxClient):
    """openai's own HTTP client class, with connections for each event loop.

    An ordinary one keeps connections of the loop that made them: after the next `asyncio.run` (or a
    notebook's restarted loop) every other request fails with "Event loop is closed".
    """

    revive: Revive | None = None
    """Awaited when a connection is lost: it may start the server again."""
    gone_s: float = GONE_S
    """A request that is marked with WAITS is sent again for so long when its connection is lost."""
    lost: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        *,
        most_bytes: int | None = None,
        transport: Callable[[], Any] | None = None,
        **options: Any,
    ) -> None:
        """most_bytes: of a whole reply, unpacked; None: no limit. Streams are the reader's to limit.
        transport: makes the transport of a loop; None: httpx's own, which reads the proxies' variables.
        """
        super().__init__(**options)
        self._most_bytes = most_bytes
        self._of_loop = PerLoop(
            lambda: openai.DefaultAsyncHttpxClient(**options, transport=transport and transport())
        )

    async def send(self, request: Any, **options: Any) -> Any:
        """Sends a request as httpx does, over the running loop's connections."""
        if self.is_closed:
            return await super().send(request, **options)  # it has the words for that
        absence = Absence(self.gone_s)
        while True:
            try:
                return await self._send(self._of_loop.get(), request, options)
            except self.lost as error:
                if self.revive is None or not request.extensions.get(WAITS):
                    raise
                lost = f"{request.url} ({type(error).__name__}: {error})"
                await absence.wait(self.revive, lost, error)

    async def _send(self, client: Any, request: Any, options: dict[str, Any]) -> Any:
        if self._most_bytes is None or options.get("stream"):
            return await client.send(request, **options)
        return await _read_whole(await client.send(request, **options | {"stream": True}), self._most_bytes)

    async def aclose(self) -> None:
        """Close the connections of this loop; those of others close with theirs."""
        own = self._of_loop.pop()
        if own is not None:
            await own.aclose()
        await super().aclose()


MOST_VALUES = 2_000
"""The values of a whole reply that is limited: openai makes an object of each in the event loop in 20 us."""
_TEXT = re.compile(rb'"(?>[^"\\]++|\\.)*+"?', re.DOTALL)


def _count_values(content: bytes) -> int:
    """No fewer than the values of a JSON text."""
    bare = _TEXT.sub(b"", content)
    return bare.count(b"{") + bare.count(b"[") + bare.count(b",")


async def _read_whole(response: Any, most_bytes: int) -> Any:
    """The same reply, read. Raises ReplyTooLargeError as soon as it is longer, without reading on, and for
    very many values.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async for part in response.aiter_bytes():
            size += len(part)
            if size > most_bytes:
                raise ReplyTooLargeError(f"the reply is longer than {most_bytes} bytes")
            parts.append(part)
    finally:
        await response.aclose()
    content = b"".join(parts)
    if await asyncio.to_thread(_count_values, content) > MOST_VALUES:
        raise ReplyTooLargeError(f"the reply holds more than {MOST_VALUES} values")
    headers = [(name, text) for name, text in response.headers.multi_items() if name not in REFRAMED]
    complete = type(response)(
        response.status_code, headers=headers, content=content, request=response.request
    )
    complete.elapsed = response.elapsed
    return complete


def http_client(
    *, trust_env: bool, name_rollouts: bool, most_bytes: int | None = None, follow_redirects: bool = True
) -> Any:
    """A client for openai's class with room for thousands of connections.

    The package behind it is httpx2 or httpx, as openai's version has it. most_bytes: of a whole reply.
    """
    package = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.split(".")[0])
    room = file_budget()

    async def name_rollout(request: Any) -> None:
        rollout = current_rollout()
        if rollout is not None:
            request.headers.setdefault(ROLLOUT_HEADER, rollout)

    context = package.create_ssl_context(trust_env=trust_env)  # 20 ms: once, not for each loop
    limits = package.Limits(max_connections=room, max_keepalive_connections=room)
    client = AnyLoopClient(
        transport=straight_transport(package, trust_env=trust_env, verify=context, limits=limits),
        verify=context,
        timeout=package.Timeout(TIMEOUT_S, connect=CONNECT_S),
        limits=limits,
        trust_env=trust_env,
        most_bytes=most_bytes,
        follow_redirects=follow_redirects,
        event_hooks={"request": [name_rollout] if name_rollouts else []},
    )
    client.lost = (package.NetworkError, package.RemoteProtocolError, package.ConnectTimeout)
    return client


Observer = Callable[[dict[str, Any], ChatCompletion], None]
"""Called with a request's options and its completion: whole replies at once, streams when they end."""


class ObservedOpenAI(openai.AsyncOpenAI):
    """The ordinary client, and two lists of ours.

    observers: called for each chat completion of `create`, `parse`, `stream` and raw responses; a stream that
    is closed early counts with what was read of it. What an observer raises reaches the caller.
    request_defaults: merged into each chat request's `extra_body`, dicts key by key; the caller's values win.
    Copies (`with_options`) share both.
    """

    observers: list[Observer]
    request_defaults: dict[str, Any]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observers = []
        self.request_defaults = {}

    @cached_property
    def chat(self) -> AsyncChat:
        return _Chat(self)

    def copy(self, **options: Any) -> Any:
        """Copies the client as `openai` does; the copy has the same observers and defaults."""
        copied = super().copy(**options)
        copied.observers, copied.request_defaults = self.observers, self.request_defaults
        return copied

    with_options = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self  # connections are shared, not copied

    async def short_way(self, options: dict[str, Any]) -> ChatCompletion | None:
        """The completion over a faster way than openai's; None where there is none."""
        return None


class _Chat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncCompletions:
        return _Completions(self._client)


class _Completions(AsyncCompletions):
    # `stream` is openai's: it calls `create`.

    async def create(self, **options: Any) -> Any:
        return await self._ask(super().create, options, is_plain=True)

    async def parse(self, **options: Any) -> Any:
        return await self._ask(super().parse, options, is_plain=False)

    async def _ask(self, ask: Callable[..., Awaitable[Any]], options: dict[str, Any], is_plain: bool) -> Any:
        client, options = self._prepared(options)
        listener, started_at = current_listener(), time.time()
        reply: Any = await client.short_way(options) if is_plain else None
        if reply is None:
            with listening(None):  # heard below; what listens to all HTTP clients shall not hear it twice
                reply = await ask(**options)
        _observe(reply, options, client, listener, started_at)
        return reply

    def _prepared(self, options: dict[str, Any]) -> tuple[ObservedOpenAI, dict[str, Any]]:
        client = self._client
        if not isinstance(client, ObservedOpenAI):
            raise TypeError(f"{client!r} is no ObservedOpenAI")
        messages = options.get("messages")
        if messages is not None and not isinstance(messages, list):
            options = {**options, "messages": list(messages)}  # any iterable will do, and several read it
        if client.request_defaults:
            own = options.get("extra_body") or {}
            options = {**options, "extra_body": deep_merge(client.request_defaults, own)}
        return client, options


def _observe(
    reply: Any,
    options: dict[str, Any],
    client: ObservedOpenAI,
    listener: Listener | None,
    started_at: float,
) -> None:
    observers = list(client.observers)
    if isinstance(reply, ChatCompletion):
        note_call(reply, started_at)
    if not observers and listener is None:
        return
    unset = openai.NotGiven | openai.Omit
    request = {key: value for key, value in options.items() if not isinstance(value, unset)}
    hearing = [] if listener is None else [_telling(listener, client, started_at)]
    if isinstance(reply, ChatCompletion):
        for observer in [*hearing, *observers]:
            observer(request, reply)
        return

    def read(observer: Observer, body: bytes) -> None:
        completion = read_completion(body, streamed=bool(request.get("stream")))
        if completion is not None:
            note_call(completion, started_at)
            observer(request, completion)

    tellers = [partial(read, observer) for observer in [*hearing, *observers]]
    # A stream or a raw response: both hold the HTTP response that their reader is going to read.
    reading = watch_body(getattr(reply, "response", None) or reply.http_response, *tellers)
    if reading is not None and listener is not None:
        listener.on_close.append(partial(reading.hand_over, tellers[0]))


def _telling(listener: Listener, client: ObservedOpenAI, started_at: float) -> Observer:
    """Passes a completion on to a listener, with the body of its request and who answered it."""
    answered_by = AnsweredBy(str(client.base_url).rstrip("/"), client.api_key)

    def pass_on(request: dict[str, Any], completion: ChatCompletion) -> None:
        body = {name: value for name, value in request.items() if name not in _BESIDE_BODY}
        body |= request.get("extra_body") or {}
        hear_reply(listener, "chat_completions", body, completion, started_at, answered_by)

    return pass_on


_BESIDE_BODY = frozenset({"extra_headers", "extra_query", "extra_body", "timeout"})
KEPT_REPLIES = 32768
"""Replies of which a client remembers what was said, at least; at most twice as many, in 2 MB."""
SLOTS = 2 * KEPT_REPLIES


class _TextTable:
    """The texts of replies by sample, both as hashes: 16 bytes a slot, of which at most half are taken."""

    def __init__(self) -> None:
        self.count = 0
        self._samples, self._texts = (array("q", [0]) * SLOTS for _ in range(2))

    def keep(self, sample: str, text: int) -> None:
        """Takes a slot. The table must not be full."""
        slot, known = self._find(sample)
        self.count += not known
        self._samples[slot], self._texts[slot] = hash(sample) or 1, text

    def text_of(self, sample: str) -> int | None:
        """Returns the hash of what a reply said; None for an unknown one."""
        slot, known = self._find(sample)
        return self._texts[slot] if known else None

    def _find(self, sample: str) -> tuple[int, bool]:
        """The slot of a sample, or the free one where it belongs (linear probing)."""
        wanted = hash(sample) or 1  # 0 is a free slot
        slot = wanted % SLOTS
        while (there := self._samples[slot]) not in (0, wanted):
            slot = (slot + 1) % SLOTS
        return slot, there != 0


class SampledTexts:
    """The texts of the newest replies, by sample: one that was changed afterwards is found out."""

    def __init__(self) -> None:
        self._newer, self._older = _TextTable(), _TextTable()
        self._lock = threading.Lock()

    def observe(self, request: dict[str, Any], completion: ChatCompletion) -> None:
        """Remembers the reply's choices."""
        for choice in completion.choices:
            sample = (choice.model_extra or {}).get(SAMPLE_FIELD)
            if isinstance(sample, str):
                calls = [getattr(call, "function", None) for call in choice.message.tool_calls or ()]
                named = [(one.name, one.arguments) for one in calls if one is not None]
                text = _text_hash(choice.message.content, named)
                with self._lock:  # loops of several threads share a client
                    if self._newer.count == KEPT_REPLIES:
                        self._newer, self._older = _TextTable(), self._newer
                    self._newer.keep(sample, text)

    def is_edited(self, choice: Any) -> bool:
        """Returns whether the choice says something else than its reply said; False for an unknown one."""
        sample = sample_id(choice) or ""
        sampled = self._newer.text_of(sample)
        if sampled is None and (sampled := self._older.text_of(sample)) is None:
            return False
        said: Any = get_messages([choice])[0]
        calls = [call["function"] for call in said.get("tool_calls") or () if call.get("function")]
        return sampled != _text_hash(said["content"], [(one["name"], one["arguments"]) for one in calls])


def _text_hash(content: str | None, calls: Sequence[tuple[str, str]]) -> int:
    """Equal in this process for one text and its calls; white space around it and in arguments is no text."""
    spelled = tuple((name, "".join(str(arguments).split())) for name, arguments in calls)
    return hash(((content or "").strip(), spelled))


MAX_RETRIES = 10
"""openai waits as `Retry-After` says, at most 8 s without one: enough for a long queue. A server that is gone
is waited for below it."""


class ChatDiskError(openai.InternalServerError, DiskError):
    """The server's disk is full or fails: what `openai` raises then, and our error."""


class ChatWorkerError(openai.InternalServerError, WorkerError):
    """The model's worker stays dead, stalled or broken: what `openai` raises then, and our error."""


class RolloutOpenAI(ObservedOpenAI):
    """The ordinary client. Plain chat completions to a server on this machine take the short way (`Lane`).

    Streams, raw responses, own headers and every failure take the ordinary way, so that errors,
    retries and their classes are those of `openai`; but a server that is gone is waited for, unless
    `max_retries` is 0, and is a ServerUnreachableError. A full disk is also a DiskError, and a worker that
    stays away a WorkerError.
    """

    lane: Lane | None = None

    @cached_property
    def _head(self) -> bytes:
        return request_head(self)

    async def _prepare_request(self, request: Any) -> None:
        await super()._prepare_request(request)
        request.extensions[WAITS] = self.max_retries > 0

    def _make_status_error(self, err_msg: str, *, body: object, response: Any) -> openai.APIStatusError:
        made = super()._make_status_error(err_msg, body=body, response=response)
        known, fields = ERROR_KINDS.get(made.code or "", ARTError), {"response": response, "body": made.body}
        if issubclass(known, DiskError):
            return ChatDiskError(err_msg, **fields)
        return ChatWorkerError(err_msg, **fields) if issubclass(known, WorkerError) else made

    def copy(self, **options: Any) -> RolloutOpenAI:
        """Copies the client as `openai` does; the copy also names rollouts. With other options it takes the
        regular path.
        """
        copied: RolloutOpenAI = super().copy(**options)
        copied.lane = None if options else self.lane
        return copied

    with_options = copy

    async def short_way(self, options: dict[str, Any]) -> ChatCompletion | None:
        """The completion over the lane; None when the ordinary way has to try."""
        if self.lane is None:
            return None
        return await complete_over_lane(self.lane, self._head, options)


def openai_client(
    *, base_url: str, api_key: str, revive: Revive | None = None, gone_s: float = GONE_S
) -> RolloutOpenAI:
    """A client for ART's server at `base_url` (".../v1"). Requests inside a rollout carry its id. `revive` is
    awaited when nobody answers; after `gone_s` seconds of that the server is gone. Without `revive`,
    `openai` alone asks again.
    """
    lane = lane_to(base_url)
    transport = http_client(trust_env=lane is None, name_rollouts=True)
    client = RolloutOpenAI(api_key=api_key, base_url=base_url, max_retries=MAX_RETRIES, http_client=transport)
    transport.revive, transport.gone_s = revive, gone_s
    client.lane = lane
    return client


class SharingOpenAI(RolloutOpenAI):
    """One over connections that others use, too: they are left open."""

    async def close(self) -> None:
        """Does nothing: the connections belong to their owner."""


def sharing(owner: RolloutOpenAI, *, base_url: str, api_key: str) -> SharingOpenAI:
    """A client for another address and key of the owner's server, over the owner's connections."""
    client = SharingOpenAI(
        api_key=api_key, base_url=base_url, max_retries=MAX_RETRIES, http_client=owner._client
    )
    client.lane = owner.lane
    return client


def plain_client(
    *, base_url: str, api_key: str, most_bytes: int | None = None, follow_redirects: bool = True
) -> ObservedOpenAI:
    """A client for anybody's endpoint, with room for thousands of requests. most_bytes: of a whole reply."""
    transport = http_client(
        trust_env=True, name_rollouts=False, most_bytes=most_bytes, follow_redirects=follow_redirects
    )
    return ObservedOpenAI(api_key=api_key, base_url=base_url, http_client=transport)
