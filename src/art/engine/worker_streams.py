"""Many completions over one WebSocket: frames of requests come up, frames of deltas go down.

All deltas that one step of the engine produced share a frame, so that 200 running requests cost one frame a
step.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic

import orjson
from pydantic import ValidationError
from starlette.websockets import WebSocket

from art.engine.frames import news_message, read_request
from art.engine.protocol import Delta
from art.engine.served import C, ServedEngine
from art.errors import ARTError, RequestError
from art.wire.engine import CancelMessage, GenerateMessage
from art.wire.flaws import flaws_without_values


async def serve_generate(engine: ServedEngine[C], socket: WebSocket) -> None:
    """Serve one accepted connection until it closes; what still runs then is cancelled."""
    streams = Streams(engine)
    sender = asyncio.create_task(streams.send_to(socket))
    try:
        while True:
            frame = await socket.receive()
            if frame["type"] == "websocket.disconnect":
                return
            streams.receive(frame.get("bytes") or frame.get("text") or "")
    finally:
        sender.cancel()
        streams.cancel_all()


class Streams(Generic[C]):
    """The requests of one connection, by id."""

    def __init__(self, engine: ServedEngine[C]) -> None:
        self.engine = engine
        self.calls: dict[str, C] = {}
        self.outbox: list[dict[str, Any]] = []
        self.ready = asyncio.Event()

    def receive(self, frame: bytes | str) -> None:
        """Take a frame; what is wrong with a message is answered under its id."""
        try:
            messages = orjson.loads(frame)
        except orjson.JSONDecodeError:
            messages = None
        for message in messages if isinstance(messages, list) else [messages]:
            request_id = str(message.get("id", "")) if isinstance(message, dict) else ""
            try:
                self._take(message)
            except ValidationError as error:
                problem = f"malformed message: {flaws_without_values(error)}"
                self._put(request_id, RequestError(problem, status=400, code="bad_message"))
            except ARTError as error:
                self._put(request_id, error)

    async def send_to(self, socket: WebSocket) -> None:
        """Send what has come together since the last frame, until cancelled."""
        while True:
            await self.ready.wait()
            self.ready.clear()
            messages, self.outbox = self.outbox, []
            await socket.send_bytes(orjson.dumps(messages))

    def cancel_all(self) -> None:
        for call in self.calls.values():
            self.engine.cancel(call)
        self.calls.clear()

    def _take(self, message: object) -> None:
        if isinstance(message, dict) and "cancel" in message:
            call = self.calls.pop(CancelMessage.model_validate(message).cancel, None)
            if call is not None:
                self.engine.cancel(call)
            return
        body = GenerateMessage.model_validate(message)
        if body.id in self.calls:
            raise RequestError(
                f"a request with the id {body.id!r} is running", status=400, code="bad_message"
            )
        request = read_request(body)
        self.calls[body.id] = self.engine.begin(request, lambda news: self._news(body.id, news))

    def _news(self, request_id: str, news: Delta | ARTError) -> None:
        if isinstance(news, ARTError) or news.finish_reason is not None:
            self.calls.pop(request_id, None)
        self._put(request_id, news)

    def _put(self, request_id: str, news: Delta | ARTError) -> None:
        self.outbox.append(news_message(request_id, news))
        self.ready.set()
