"""A client that costs little, in a process of its own: what is measured with it is the server.

    python -m bench.serving.load < JOB        JOB and the answer are one line of JSON each

`requests`: so many chat completions over so many connections, each connection one after the other;
            with `rollouts`, each is of one of so many rollouts. `busy`, `ended_busy`: the seconds while all
            connections had requests, and how many ended in them.
`direct`: the same of an engine worker, without a gateway: given prompts, given ids that end a turn.
`paired`: each request of both, one right after the other, in an order drawn by lot.
`bodies`: bodies of so many bytes over so many connections until the standard input ends: `whole` ones, or
            all but the last byte and then nothing.
`held`: connections that are hardly used (`bench/serving/held_connections.py`).
`pulse`: GET /health every `every` seconds until the standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from art.engine.protocol import GenerateRequest, Sampling
from art.engine.remote import RemoteEngine
from bench.serving.held_connections import held
from bench.serving.lean_http import Connection, Reply, connect, http_request

LIMIT_SECONDS = 240.0
"""The process ends by itself, whatever the server does."""
PART = 65_536
"""Bytes of a large body that are sent at a time."""
CONNECTING = 64
"""Connections that are opened at the same time."""


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
    rollouts = job.get("rollouts")
    rollout = f"/r/{number // 1_000_000}-{number % rollouts}" if rollouts else ""
    return http_request(job, "POST", f"{rollout}/v1/chat/completions", json.dumps(body).encode())


def tokens(job: dict[str, Any], number: int) -> int:
    """Of a reply: always the same, or spread over a range."""
    wanted = job["max_tokens"]
    if isinstance(wanted, int):
        return wanted
    least, most = wanted
    return int(least + number * 37 % (most - least + 1))


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
    done: list[float] = []

    async def run(connection: Connection, mine: list[bytes]) -> None:
        for body in mine:
            try:
                replies.append(await connection.ask(body))
            except ConnectionError as error:
                errors.append(str(error))
            ends.append(time.perf_counter())
        done.append(time.perf_counter())

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
        "busy": min(done) - begin,
        "ended_busy": sum(end <= min(done) for end in ends),
        "errors": errors[:20],
        "failed": len(errors),
        "samples": samples,
        "seconds": sorted(reply.seconds for reply in replies),
    }


def asked_directly(job: dict[str, Any], number: int) -> GenerateRequest:
    """What the gateway makes of `chat_request`."""
    return GenerateRequest(
        request_id=str(number),
        adapter=None,
        prompt_ids=job["prompts"][number % len(job["prompts"])],
        sampling=Sampling(
            max_tokens=tokens(job, number),
            seed=number,
            stop_token_ids=tuple(job["stop_token_ids"]),
        ),
        stream=job["stream"],
    )


async def ask_directly(engine: RemoteEngine, request: GenerateRequest) -> tuple[float, int]:
    """Seconds, and ids sampled."""
    begin, sampled = time.perf_counter(), 0
    async for delta in engine.generate(request):
        sampled += len(delta.token_ids)
    return time.perf_counter() - begin, sampled


def worker_of(job: dict[str, Any]) -> RemoteEngine:
    return RemoteEngine(f"http://{job['host']}:{job['worker_port']}", job["worker_key"])


async def direct(job: dict[str, Any]) -> dict[str, Any]:
    engine = worker_of(job)
    seconds: list[float] = []

    async def run(place: int) -> None:
        for number in range(place, job["requests"], job["connections"]):
            seconds.append((await ask_directly(engine, asked_directly(job, job["first"] + number)))[0])

    await engine.info()
    begin = time.perf_counter()
    await asyncio.gather(*(run(place) for place in range(job["connections"])))
    wall = time.perf_counter() - begin
    await engine.close()
    return {"wall": wall, "failed": 0, "seconds": sorted(seconds)}


async def paired(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each request through the gateway and of the worker: `pairs`, in any order."""
    engine, opening = worker_of(job), asyncio.Semaphore(CONNECTING)
    pairs: list[tuple[float, float]] = []

    async def through(connection: Connection, number: int) -> tuple[float, int]:
        reply = await connection.ask(chat_request(job, number))
        if reply.status != 200:
            raise SystemExit(f"the gateway answered {reply.status}: {bytes(reply.body[:300])!r}")
        return reply.seconds, json.loads(reply.body)["usage"]["completion_tokens"]

    async def run(place: int) -> None:
        connection, order = await connect(job, opening), random.Random(job["first"] + place)
        for number in range(job["first"] + place, job["first"] + job["requests"], job["connections"]):
            request = asked_directly(job, number)
            if order.random() < 0.5:
                ours, theirs = await through(connection, number), await ask_directly(engine, request)
            else:
                theirs, ours = await ask_directly(engine, request), await through(connection, number)
            if ours[1] != theirs[1]:
                raise SystemExit(
                    f"request {number}: the gateway sampled {ours[1]} ids, the worker {theirs[1]}"
                )
            pairs.append((ours[0], theirs[0]))
        assert connection.transport is not None
        connection.transport.close()

    await engine.info()
    await asyncio.gather(*(run(place) for place in range(job["connections"])))
    await engine.close()
    return {"pairs": pairs}


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


def large_request(job: dict[str, Any]) -> bytes:
    """A chat, one field of which makes it as large as `bytes`."""
    value = [1] * (job["bytes"] // 3) if job["field"] == "stop_token_ids" else "a" * job["bytes"]
    body: dict[str, Any] = {"model": job["model"], "messages": [{"role": "user", "content": "Say yes."}]}
    if job["field"] == "content":
        body["messages"][0]["content"] = value
    else:
        body[job["field"]] = value
    return http_request(job, "POST", "/v1/chat/completions", json.dumps(body).encode())


async def bodies(job: dict[str, Any]) -> dict[str, Any]:
    """How many were answered with which status; one that is refused is sent again a second later."""
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    request, answered = large_request(job), Counter[str]()
    sent = request if job["whole"] else request[:-1]

    async def send_one() -> None:
        reader, writer = await asyncio.open_connection(job["host"], job["port"])
        status = asyncio.ensure_future(reader.readline())
        try:
            for at in range(0, len(sent), PART):
                writer.write(sent[at : at + PART])
                await writer.drain()
                if status.done():
                    break
            await asyncio.wait([over, status], return_when=asyncio.FIRST_COMPLETED)
            if status.done() and (line := status.result()):
                answered[line.split()[1].decode()] += 1
        finally:
            status.cancel()
            writer.close()

    async def send_on() -> None:
        while not over.done():
            try:
                await send_one()
            except ConnectionError:
                answered["cut off"] += 1
            await asyncio.wait([over], timeout=1)

    await asyncio.gather(*(send_on() for _ in range(job["connections"])))
    return {"answered": answered}


KINDS = {
    "requests": requests,
    "direct": direct,
    "paired": paired,
    "bodies": bodies,
    "pulse": pulse,
    "held": held,
}


async def main() -> None:
    job = json.loads(sys.stdin.readline())
    async with asyncio.timeout(LIMIT_SECONDS):
        answer = await KINDS[job["kind"]](job)
    answer["cpu"] = time.process_time()
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
