"""An `openai.AsyncOpenAI` that tells its observers of each chat completion, and adds defaults to requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import openai
from openai.resources.chat import AsyncChat
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion

from art.capture.listening import Listener, current_listener, listening
from art.capture.reply import read_completion
from art.capture.response import watch
from art.nested import deep_merge

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
        """As in `openai`; the copy has the same observers and defaults."""
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
        client, options = self._prepared(options)
        listener = current_listener()
        reply: Any = await client.short_way(options)
        if reply is None:
            with listening(None):  # heard below; what listens to all HTTP clients shall not hear it twice
                reply = await super().create(**options)
        if client.observers or listener is not None:
            _observe(reply, options, list(client.observers), listener)
        return reply

    async def parse(self, **options: Any) -> Any:
        client, options = self._prepared(options)
        listener = current_listener()
        with listening(None):
            reply = await super().parse(**options)
        if client.observers or listener is not None:
            _observe(reply, options, list(client.observers), listener)
        return reply

    def _prepared(self, options: dict[str, Any]) -> tuple[ObservedOpenAI, dict[str, Any]]:
        client = self._client
        if not isinstance(client, ObservedOpenAI):
            raise TypeError(f"{client!r} is no ObservedOpenAI")
        messages = options.get("messages")
        if messages is not None and not isinstance(messages, list):
            options = {**options, "messages": list(messages)}  # any iterable will do, and several read it
        if client.request_defaults:
            own = options.get("extra_body")
            options = {**options, "extra_body": deep_merge(client.request_defaults, own if own else {})}
        return client, options


def _observe(
    reply: Any, options: dict[str, Any], observers: list[Observer], listener: Listener | None
) -> None:
    unset = openai.NotGiven | openai.Omit
    request = {key: value for key, value in options.items() if not isinstance(value, unset)}
    hearing = [listener.hear] if listener is not None else []
    if isinstance(reply, ChatCompletion):
        for observer in [*hearing, *observers]:
            observer(request, reply)
        return

    def read(observer: Observer, body: bytes) -> None:
        completion = read_completion(body, streamed=bool(request.get("stream")))
        if completion is not None:
            observer(request, completion)

    # A stream or a raw response: both hold the HTTP response that their reader is going to read.
    response = getattr(reply, "response", None) or reply.http_response
    tellers = [partial(read, observer) for observer in [*hearing, *observers]]
    reading = watch(response, *tellers)
    if reading is not None and listener is not None:
        listener.follow(partial(reading.settle, tellers[0]))
