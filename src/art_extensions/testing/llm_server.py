"""An endpoint of OpenAI's shape on loopback, answered by a function: real HTTP, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from types import TracebackType

from art.errors import ConfigurationError, require_extra
from art.process.resources import listen
from art_extensions.testing.answers import FORMATS, Answer, AnsweringModel, Mischief

STOPPED_WITHIN = 10.0
"""Seconds until the thread has ended after it was asked to."""


class LlmServer(AnsweringModel):
    """`async with LlmServer(answer) as server:`, or `with`: answers at `server.base_url` for `server.key`.

    `answer` is called in the server's thread with the body of each chat request; what it raises becomes a
    reply with status 400, the error's text, and its `param` if it has one.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        mischief: Mischief | None = None,
        key: str = "test-key",
        model: str = "truth",
        formats: Sequence[str] = FORMATS,
        capacity: int | None = None,
        delay: float = 0.0,
        port: int = 0,
    ) -> None:
        """key: any other is answered with 401. model: the name listed at /v1/models; requests may name any.

        formats: kinds of `response_format` that are understood; others are refused with 400, as by endpoints
        that lack them. capacity: requests at a time; more are answered with 429. delay: seconds that every
        answer takes. port: 0 takes a free one.
        """
        super().__init__(
            answer,
            mischief=mischief,
            key=key,
            model=model,
            formats=formats,
            capacity=capacity,
            delay=delay,
        )
        self._port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    @property
    def base_url(self) -> str:
        """The base URL with /v1, as OpenAI's clients expect it."""
        return f"http://127.0.0.1:{self._port}/v1"

    def start(self) -> None:
        """Listen, and return. Raises MissingExtraError without the extra `server`."""
        require_extra("server", "the test endpoint")
        if self._thread is not None:
            raise ConfigurationError(f"The test endpoint at {self.base_url} is running already.")
        listener = listen("127.0.0.1", self._port)
        self._port = listener.getsockname()[1]
        self._loop, self._stop = asyncio.new_event_loop(), asyncio.Event()
        options = (listener, self._loop)
        self._thread = threading.Thread(target=self._run, args=options, name="llm-server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Releases hanging requests, closes all connections, ends the thread."""
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOPPED_WITHIN)
            self._thread = None

    def _run(self, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        from art_extensions.testing.llm_app import serve

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve(self, listener, self._stop))

    def __enter__(self) -> LlmServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> LlmServer:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)
