"""What our own HTTP protocol adds to ASGI: replies in one piece, clients that tell when they go."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from live import KEY, Live

from waiting import DEADLINE_S, until

BODY = json.dumps({"model": "player", "messages": [{"role": "user", "content": "hi"}]}).encode()


async def test_requests_sent_in_one_piece_are_answered_one_after_the_other(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    request = f"{head}content-length: {len(BODY)}\r\n\r\n".encode() + BODY
    writer.write(request * 3)
    samples = []
    for _ in range(3):
        told = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)
        assert told.startswith(b"HTTP/1.1 200")
        length = int(told.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        reply = json.loads(await asyncio.wait_for(reader.readexactly(length), DEADLINE_S))
        samples.append(reply["choices"][0]["sample_id"])
    assert len(set(samples)) == 3
    writer.close()


async def test_a_client_that_goes_away_is_noticed_behind_any_asgi_server(live: Live) -> None:
    """Another server's HTTP protocol tells it by `receive` alone."""
    live.engine.gate = asyncio.Event()
    gone = asyncio.Event()
    sent: list[Any] = []
    told = iter([{"type": "http.request", "body": BODY, "more_body": False}])

    async def receive() -> Any:
        if (first := next(told, None)) is not None:
            return first
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        sent.append(event)

    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
    asked = asyncio.create_task(live.app(scope, receive, send))
    await until(lambda: len(live.engine.requests) == 1)
    gone.set()
    await asyncio.wait_for(asked, DEADLINE_S)
    await until(lambda: len(live.engine.cancelled) == 1)
    assert sent == []
