"""A client that costs little, in a process of its own: what is measured with it is the server.

    python -m bench.load < JOB        JOB and the answer are one line of JSON each

`requests`: so many chat completions over so many connections, each connection one after the other.
`direct`: the same of an engine worker, without a gateway: given prompts, given ids that end a turn.
`pulse`: GET /health every `every` seconds until the standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import httptools

from art.engine.protocol import GenerateRequest, Sampling
from art.engine.remote import RemoteEngine

LIMIT_SECONDS = 240.0
"""The process ends by itself, whatever the server does."""
CONNECTING = 64
"""Connections that are opened at the same time."""


@dataclass(slots=True)
class Reply:
    """One answer: status, body, seconds from the first byte sent to the last one read."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    seconds: float = 0.0


class Connection(asyncio.Protocol):
    """HTTP/1.1, one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._reply = Reply()
        self._done: asyncio.Future[Reply] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"closed within a reply: {error!r}"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._reply.body += body

    def on_message_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()
        assert self._done is not None
        if not self._done.done():
            self._done.set_result(self._reply)

    async def ask(self, request: bytes) -> Reply:
        """Raises ConnectionError."""
        assert self.transport is not None
        self._parser, self._reply = httptools.HttpResponseParser(self), Reply()
        self._done = asyncio.get_running_loop().create_future()
        begin = time.perf_counter()
        self.transport.write(request)
        reply = await self._done
        reply.seconds = time.perf_counter() - begin
        return reply


def chat_request(job: dict[str, Any], number: int) -> bytes:
    conversations = job.get("conversations")
    text = {"role": "user", "content": f"{job['text']} {number % job['texts']}"}
    body = {
        "model": job["model"],
        "messages": conversations[number % len(conversations)] if conversations else [text],
        "max_tokens": tokens(job, number),
        "seed": number,
        "stream": job["stream"],
    }
    return http_request(job, "POST", "/v1/chat/completions", json.dumps(body).encode())


def tokens(job: dict[str, Any], number: int) -> int:
    """Of a reply: always the same, or spread over a range."""
    wanted = job["max_tokens"]
    if isinstance(wanted, int):
        return wanted
    least, most = wanted
    return int(least + number * 37 % (most - least + 1))


def http_request(job: dict[str, Any], method: str, path: str, body: bytes = b"") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {job['host']}\r\nauthorization: Bearer {job['key']}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def connect(job: dict[str, Any], opening: asyncio.Semaphore) -> Connection:
    async with opening:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, job["host"], job["port"]
        )
    return connection


def samples_of(body: bytes, stream: bool) -> list[str]:
    """The samples that a reply names: each is to be found in the ledger."""
    if not stream:
        return [choice["sample_id"] for choice in json.loads(body)["choices"]]
    names: dict[str, None] = {}
    lines = bytes(body).split(b"\n\n")
    if lines[-2] != b"data: [DONE]":
        raise ValueError("the stream broke off")
    for line in lines[:-2]:
        for choice in json.loads(line.removeprefix(b"data: ")).get("choices", ()):
            names[choice["sample_id"]] = None
    return list(names)


async def requests(job: dict[str, Any]) -> dict[str, Any]:
    """All connections are open before the first request is sent."""
    opening = asyncio.Semaphore(CONNECTING)
    count = job["connections"]
    connections = await asyncio.gather(*(connect(job, opening) for _ in range(count)))
    bodies = [chat_request(job, job["first"] + number) for number in range(job["requests"])]
    replies: list[Reply] = []
    errors: list[str] = []
    ends: list[float] = []

    async def run(connection: Connection, mine: list[bytes]) -> None:
        for body in mine:
            try:
                replies.append(await connection.ask(body))
            except ConnectionError as error:
                errors.append(str(error))
            ends.append(time.perf_counter())

    begin = time.perf_counter()
    await asyncio.gather(*(run(one, bodies[place::count]) for place, one in enumerate(connections)))
    wall = time.perf_counter() - begin
    for one in connections:
        assert one.transport is not None
        one.transport.close()
    errors += [bytes(reply.body[:300]).decode() for reply in replies if reply.status != 200]
    samples = [
        name for reply in replies if reply.status == 200 for name in samples_of(reply.body, job["stream"])
    ]
    return {
        "wall": wall,
        "first_end": min(ends) - begin,
        "errors": errors[:20],
        "failed": len(errors),
        "samples": samples,
        "seconds": sorted(reply.seconds for reply in replies),
    }


async def direct(job: dict[str, Any]) -> dict[str, Any]:
    engine = RemoteEngine(f"http://{job['host']}:{job['port']}", job["key"])
    seconds: list[float] = []

    async def run(first: int) -> None:
        for number in range(first, job["requests"], job["connections"]):
            request = GenerateRequest(
                request_id=str(number),
                adapter=None,
                prompt_ids=job["prompts"][number % len(job["prompts"])],
                sampling=Sampling(
                    max_tokens=tokens(job, number),
                    seed=job["first"] + number,
                    stop_token_ids=tuple(job["stop_token_ids"]),
                ),
                stream=job["stream"],
            )
            begin = time.perf_counter()
            async for _ in engine.generate(request):
                pass
            seconds.append(time.perf_counter() - begin)

    await engine.info()
    begin = time.perf_counter()
    await asyncio.gather(*(run(first) for first in range(job["connections"])))
    wall = time.perf_counter() - begin
    await engine.close()
    return {"wall": wall, "failed": 0, "seconds": sorted(seconds)}


async def pulse(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each answer of /health, asked one after the other."""
    connection = await connect(job, asyncio.Semaphore(1))
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    request, seconds, failed = http_request(job, "GET", "/health"), [], 0
    while not over.done():
        try:
            reply = await connection.ask(request)
            failed += reply.status != 200
            seconds.append(reply.seconds)
        except ConnectionError:
            failed += 1
            connection = await connect(job, asyncio.Semaphore(1))
        await asyncio.wait([over], timeout=job["every"])
    return {"seconds": sorted(seconds), "failed": failed}


async def main() -> None:
    job = json.loads(sys.stdin.readline())
    async with asyncio.timeout(LIMIT_SECONDS):
        answer = await {"requests": requests, "direct": direct, "pulse": pulse}[job["kind"]](job)
    answer["cpu"] = time.process_time()
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
