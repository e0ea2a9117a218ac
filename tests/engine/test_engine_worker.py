"""The worker process and its client when things go wrong: keys, kills, stalls, crashes, garbage."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from engine_models import ask, build_adapter, running_worker, whole
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from art.engine.builtin.engine import BuiltinEngine
from art.engine.registry import check_bits, engine_options, worker_command
from art.engine.remote import Deadlines, RemoteEngine
from art.errors import (
    ARTError,
    ConfigurationError,
    NotFoundError,
    OverloadedError,
    RequestError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)
from art.wire.engine import BuiltinOptions, WorkerReady, WorkerStart, to_body, to_error
from waiting import DEADLINE_S, turns, until

OPTIONS = BuiltinOptions(threads=1)
PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def worker(base: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    with running_worker(base, OPTIONS) as made:
        yield made


@pytest.mark.slow
async def test_without_the_key_nothing_answers(worker: tuple[subprocess.Popen[bytes], str, str]) -> None:
    _, url, _ = worker
    async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client:
        for method, path in (("GET", "/health"), ("POST", "/score"), ("POST", "/load_adapter")):
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                assert (await client.request(method, path, headers=headers)).status_code == 401
    with pytest.raises(InvalidStatus):
        await connect(url.replace("http", "ws") + "/generate")
    engine = RemoteEngine(url, "wrong")
    with pytest.raises(WorkerError):
        await whole(engine.generate(ask(PROMPT)))
    await engine.close()


@pytest.mark.slow
async def test_malformed_bodies_are_named(worker: tuple[subprocess.Popen[bytes], str, str]) -> None:
    _, url, key = worker
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=DEADLINE_S) as client:
        reply = await client.post("/score", content=b'{"rows": [[1, 2]], "temprature": 1}')
    assert reply.status_code == 400 and "temprature" in reply.json()["message"]


@pytest.mark.slow
async def test_a_transfer_that_the_worker_does_not_know_is_refused(
    worker: tuple[subprocess.Popen[bytes], str, str],
) -> None:
    _, url, key = worker
    body = b'{"name": "agent@1", "path": "/nowhere", "transfer": "nccl"}'
    async with httpx.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=DEADLINE_S
    ) as client:
        reply = await client.post("/load_adapter", content=body)
    assert reply.status_code == 400
    assert "unknown transfer 'nccl'; known: shelf" in reply.json()["message"]


@pytest.mark.slow
async def test_garbage_on_the_socket_hurts_only_itself(
    worker: tuple[subprocess.Popen[bytes], str, str],
) -> None:
    _, url, key = worker
    headers = {"Authorization": f"Bearer {key}"}
    async with connect(url.replace("http", "ws") + "/generate", additional_headers=headers) as socket:
        for frame in (b"no json", b"7", b'[{"id": "a", "prompt_ids": "no"}]', b'[{"cancel": "nobody"}]'):
            await socket.send(frame)
        good = {"id": "good", "prompt_ids": PROMPT, "sampling": {"max_tokens": 3}}
        await socket.send(orjson.dumps([good]))
        answers = {}
        while "good" not in answers:
            for message in orjson.loads(await asyncio.wait_for(socket.recv(), DEADLINE_S)):
                answers[message["id"]] = message
    assert answers["a"]["error"]["status"] == 400
    assert len(answers["good"]["token_ids"]) == 3


@pytest.mark.slow
async def test_a_lost_client_frees_its_requests(worker: tuple[subprocess.Popen[bytes], str, str]) -> None:
    _, url, key = worker
    engine, observer = RemoteEngine(url, key), RemoteEngine(url, key)
    stream = engine.generate(ask(PROMPT, max_tokens=240, stream=True))
    await anext(stream)
    await engine.close()
    with pytest.raises(WorkerError):
        await whole(stream)

    async def idle() -> bool:
        return (await observer.health()).running == 0

    await until(idle)
    await observer.close()


@pytest.mark.slow
async def test_a_killed_worker_fails_what_is_open_and_what_comes(base: Path) -> None:
    with running_worker(base, OPTIONS) as (process, url, key):
        engine = RemoteEngine(url, key)
        stream = engine.generate(ask(PROMPT, max_tokens=240, stream=True))
        await anext(stream)
        process.kill()
        with pytest.raises(WorkerDiedError):
            await asyncio.wait_for(whole(stream), DEADLINE_S)
        with pytest.raises(WorkerDiedError):
            await whole(engine.generate(ask(PROMPT)))
        with pytest.raises(WorkerDiedError):
            await engine.info()
        await engine.close()


@pytest.mark.slow
async def test_a_stopped_worker_is_noticed(base: Path) -> None:
    with running_worker(base, OPTIONS) as (process, url, key):
        engine = RemoteEngine(url, key, Deadlines(health=2.0, control=2.0, stall=1.0))
        stream = engine.generate(ask(PROMPT, max_tokens=240, stream=True))
        await anext(stream)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(WorkerStalledError):
                await asyncio.wait_for(whole(stream), DEADLINE_S)
            with pytest.raises(WorkerStalledError):
                await engine.score(None, [PROMPT])
        finally:
            os.kill(process.pid, signal.SIGCONT)
        await engine.close()


@pytest.mark.slow
def test_it_ends_when_its_parent_does(base: Path) -> None:
    with running_worker(base, OPTIONS) as (process, _, _):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=DEADLINE_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"base_model": "x", "key": "0123456789abcdef", "speed": 9}\n', "speed"),
        (
            WorkerStart(base_model="/nowhere", key="0123456789abcdef").model_dump_json().encode() + b"\n",
            "/nowhere",
        ),
    ],
)
def test_it_says_why_it_cannot_start(line: bytes, said: str) -> None:
    done = subprocess.run(worker_command("builtin"), input=line, capture_output=True, timeout=240)
    ready = WorkerReady.model_validate_json(done.stdout)
    assert done.returncode != 0 and not ready.ready and said in ready.error
    assert b"0123456789abcdef" not in done.stdout + done.stderr


@pytest.mark.slow
async def test_a_crash_of_the_step_loop_fails_everyone_and_shows_in_health(base: Path) -> None:
    engine = await BuiltinEngine.start(str(base), OPTIONS)
    stream = engine.generate(ask(PROMPT, max_tokens=240, stream=True))
    await anext(stream)
    # A cache whose memory is gone: the next step cannot write to it.
    engine._core.scheduler.cache.keys.clear()
    with pytest.raises(WorkerError, match="step loop ended"):
        await asyncio.wait_for(whole(stream), DEADLINE_S)
    with pytest.raises(WorkerError, match="step loop ended"):
        await whole(engine.generate(ask(PROMPT)))
    assert "IndexError" in engine.health().error
    await engine.close()


def in_line(engine: BuiltinEngine) -> list[asyncio.Task[object]]:
    """They wait their turn, one at a time: adapter `a` is in use for seconds."""
    return [asyncio.create_task(whole(engine.generate(ask(PROMPT, "a", max_tokens=240)))) for _ in range(40)]


def stop_at(engine: BuiltinEngine, number: int) -> threading.Event:
    """The engine takes this step only when the event is set: until then what runs is not done."""
    go, step, taken = threading.Event(), engine._core.step, itertools.count()

    def take() -> Any:
        if next(taken) == number:
            go.wait(DEADLINE_S)
        return step()

    engine._core.step = take
    return go


@pytest.mark.slow
async def test_who_gives_up_waiting_does_not_hurt_the_engine(base: Path, tmp_path: Path) -> None:
    engine = await BuiltinEngine.start(str(base), BuiltinOptions(threads=1, max_running=1))
    await engine.load_adapter("a", build_adapter(tmp_path, base, seed=1))
    ordered, given_up = stop_at(engine, 50), stop_at(engine, 100)
    stream = engine.generate(ask(PROMPT, "a", max_tokens=240, stream=True))
    first = await anext(stream)  # of one token or, on a busy machine, of several
    queue = in_line(engine)
    await turns()
    unloading = asyncio.create_task(engine.unload_adapter("a"))
    await turns()
    ordered.set()
    await until(lambda: "a" not in engine.health().adapters)
    unloading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await unloading
    given_up.set()
    assert len(first.token_ids) + len((await whole(stream)).token_ids) == 240
    for waiting in queue:
        waiting.cancel()
    await asyncio.gather(*queue, return_exceptions=True)
    assert len((await whole(engine.generate(ask(PROMPT, max_tokens=3)))).token_ids) == 3
    await engine.close()


@pytest.mark.slow
async def test_closing_fails_those_who_wait_for_an_adapter_to_go(base: Path, tmp_path: Path) -> None:
    engine = await BuiltinEngine.start(str(base), BuiltinOptions(threads=1, max_running=1))
    await engine.load_adapter("a", build_adapter(tmp_path, base, seed=1))
    ordered, closed = stop_at(engine, 50), stop_at(engine, 100)
    stream = engine.generate(ask(PROMPT, "a", max_tokens=240, stream=True))
    await anext(stream)
    queue = in_line(engine)
    await turns()
    unloading = asyncio.create_task(engine.unload_adapter("a"))
    await turns()
    ordered.set()
    await until(lambda: "a" not in engine.health().adapters)
    closing = asyncio.create_task(engine.close())
    await turns()
    closed.set()
    await closing
    for waiting in (unloading, queue[-1], engine.score(None, [PROMPT])):
        with pytest.raises(WorkerError):
            await waiting
    await asyncio.gather(*queue, return_exceptions=True)


@pytest.mark.parametrize(
    "error",
    [
        OverloadedError("full", retry_after=2.5),
        NotFoundError("no such adapter", status=404, code="model_not_found"),
        RequestError("too long", status=400, code="context_length_exceeded"),
        ConfigurationError("taken"),
        WorkerStalledError("stuck"),
    ],
)
def test_an_error_survives_the_wire(error: ARTError) -> None:
    again = to_error(to_body(error))
    assert type(again) is type(error) and str(again) == str(error)
    assert vars(again) == vars(error)


def test_unknown_engines_and_options_list_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="builtin"):
        worker_command("vlm")
    with pytest.raises(ConfigurationError, match="max_running"):
        engine_options("builtin", {"max_runing": 3})
    assert engine_options("builtin", {"max_running": 3}) == BuiltinOptions(max_running=3)


@pytest.mark.extension
def test_an_engine_without_quantized_bases_says_so_before_it_starts() -> None:
    for bits in (4, 8, 16):
        check_bits("builtin", bits)
    check_bits("vllm", 16)
    with pytest.raises(ConfigurationError, match=r"'vllm' cannot sample .* 4 bits: vLLM .* no bitsandbytes"):
        check_bits("vllm", 4)
    with pytest.raises(ConfigurationError, match="4, 8 or 16 bits; bits is 5"):
        check_bits("builtin", 5)
