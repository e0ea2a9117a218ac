"""What a chat completion costs its client over each way to a server on this machine.

ours       `openai_client`: a plain completion leaves over the fast lane (`art.client.http.fast_http`)
aiohttp    `openai.AsyncOpenAI` with `openai.DefaultAioHttpClient`
httpx      `openai.AsyncOpenAI` as it comes

All ask one server, which reads a request, waits for nothing and writes the same reply each time. The clients
take turns, each in a process of its own that warms up first. CPU is that of the client's process, wall the
time of all completions divided by their number.

The goal is what keeps the fast lane: where openai over aiohttp comes within 20 % of it, it is not worth its
code.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import httptools
import openai

from art.client.http.openai_client import openai_client
from bench.rows import Row, write_rows

REQUESTS = {1: 400, 64: 1600}
"""At a time -> altogether."""
WARM_UP = 64
REPETITIONS = 5
WORTH_IT = 1.2
WAYS = ("ours", "aiohttp", "httpx")
MESSAGES = [
    {"role": "system", "content": "You play tic-tac-toe. Answer with the number of a free cell."},
    {"role": "user", "content": "The board is X.O/.X./..O and it is your move."},
]
COMPLETION = {
    "id": "chatcmpl-0",
    "object": "chat.completion",
    "created": 1,
    "model": "player",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "logprobs": None,
            "message": {"role": "assistant", "content": "<move>6</move>"},
            "sample_id": "s_0123456789abcdef",
            "step": 7,
        }
    ],
    "usage": {"prompt_tokens": 40, "completion_tokens": 8, "total_tokens": 48},
}
BODY = json.dumps(COMPLETION).encode()
REPLY = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY


class Server(asyncio.Protocol):
    """Answers each request of a connection with `REPLY`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.transport.write(REPLY)


async def serve() -> None:
    """Print the port, and answer until the standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def client_of(way: str, base_url: str) -> Any:
    if way == "ours":
        return openai_client(base_url=base_url, api_key="key")
    http_client = openai.DefaultAioHttpClient() if way == "aiohttp" else None
    return openai.AsyncOpenAI(base_url=base_url, api_key="key", http_client=http_client)


async def ask(way: str, port: int, at_a_time: int) -> None:
    """Print milliseconds of CPU and of wall time for a completion."""
    async with client_of(way, f"http://127.0.0.1:{port}/v1") as client:

        async def one_after_the_other(count: int) -> None:
            for _ in range(count):
                reply = await client.chat.completions.create(model="player", messages=MESSAGES, max_tokens=8)
                assert reply.choices[0].model_extra["step"] == 7

        async def run(count: int) -> None:
            await asyncio.gather(*(one_after_the_other(count // at_a_time) for _ in range(at_a_time)))

        await run(max(WARM_UP, 2 * at_a_time))
        count = REQUESTS[at_a_time]
        cpu, wall = time.process_time(), time.perf_counter()
        await run(count)
        spent = (time.process_time() - cpu, time.perf_counter() - wall)
    print(json.dumps([1000 * seconds / count for seconds in spent]))


def measured(way: str, port: int, at_a_time: int) -> list[float]:
    command = [sys.executable, "-m", "bench.serving.transport", way, str(port), str(at_a_time)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    spent: list[float] = json.loads(done.stdout)
    return spent


def rows_of(at_a_time: int, port: int) -> list[Row]:
    turns = [{way: measured(way, port, at_a_time) for way in WAYS} for _ in range(REPETITIONS)]
    rows = []
    for place, what in enumerate(("CPU of the client", "wall time")):
        ours = statistics.median(turn["ours"][place] for turn in turns)
        for way in WAYS[1:]:
            peer = statistics.median(turn[way][place] for turn in turns)
            ratio = statistics.median(turn[way][place] / turn["ours"][place] for turn in turns)
            name = f"{at_a_time} at a time: {what} for a completion, against openai over {way}"
            goal = WORTH_IT if way == "aiohttp" else None
            rows.append(Row(name=name, ours=ours, peer=peer, unit="ms", ratio=ratio, goal=goal))
    return rows


def main() -> None:
    command = [sys.executable, "-m", "bench.serving.transport", "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdin is not None
        port = int(server.stdout.readline())
        rows = [row for at_a_time in REQUESTS for row in rows_of(at_a_time, port)]
        server.stdin.close()
    write_rows("transport", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve())
    elif sys.argv[1:]:
        asyncio.run(ask(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
    else:
        main()
