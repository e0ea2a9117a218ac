"""GET /metrics, read with the parser of `prometheus_client` itself."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from live import KEY, Live, listening
from prometheus_client.parser import text_string_to_metric_families
from scripted_engine import Script
from tenants_world import OPERATOR, World, run_world

from art.rendering.library import LibraryRenderer
from art.server.counts import MOST_MODELS, OTHERS, TENANTS, LoopLag, ModelLabels
from art.server.settings import LimitSettings
from art.server.tenancy import internal_name
from waiting import DEADLINE_S, until

HI = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
Read = Callable[..., float | None]


async def scraped(url: str, key: str = KEY) -> tuple[str, Read]:
    """The text, and what looks a sample up by its name and some of its labels."""
    async with httpx.AsyncClient(
        base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=DEADLINE_S
    ) as client:
        reply = await client.get("/metrics")
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [one for family in text_string_to_metric_families(reply.text) for one in family.samples]

    def read(name: str, **labels: str) -> float | None:
        found = [one.value for one in samples if one.name == name and labels.items() <= one.labels.items()]
        return sum(found) if found else None

    return reply.text, read


async def test_counters_move_with_requests(live: Live) -> None:
    _, before = await scraped(live.url)
    assert before("art_requests_total", route=CHAT) is None
    for stream in (False, True):
        reply = await live.client.chat.completions.create(
            model="player", messages=HI, n=2, stream=stream, extra_body={"metadata": {"a": "b"}}
        )  # type: ignore[call-overload]
        if stream:
            async for _ in reply:
                continue
    await live.client.chat.completions.create(model="tiny", messages=HI)
    text, after = await scraped(live.url)
    chat = {"route": CHAT, "method": "POST"}
    assert after("art_requests_total", **chat, status="200") == 3
    assert after("art_request_seconds_count", **chat) == 3
    assert after("art_request_seconds_bucket", **chat, le="+Inf") == 3
    assert after("art_requests_total", route="/metrics", method="GET", status="200") == 1
    assert after("art_requests_in_flight") == 1  # the scrape
    prompt = len(live.engine.requests[0].prompt_ids)
    sampled = len(live.renderer.encode("hello<|im_end|>"))
    player, base = {"base_model": "tiny", "model": "games/player"}, {"base_model": "tiny", "model": "(base)"}
    assert after("art_sampled_tokens_total", **player) == 4 * sampled
    assert after("art_prompt_tokens_total", **player) == 2 * prompt  # of a request, not of each choice
    assert after("art_sampled_tokens_total", **base) == sampled
    assert (before("art_ledger_samples"), after("art_ledger_samples")) == (0, 5)
    wal = live.ledger.path.with_name(f"{live.ledger.path.name}-wal")
    assert after("art_ledger_bytes") == live.ledger.path.stat().st_size + wal.stat().st_size
    assert after("art_model_step", **player) == 3
    assert (after("process_resident_memory_bytes") or 0) > 1e6
    assert KEY not in text and "hello" not in text


async def test_what_is_refused_or_broken_off_is_counted_by_its_status(live: Live) -> None:
    async with httpx.AsyncClient(
        base_url=live.url, headers={"authorization": f"Bearer {KEY}"}, timeout=DEADLINE_S
    ) as client:
        await client.post(CHAT, json={"model": "nobody", "messages": HI})
        await client.get("/v1/samples/smp_none")
        await client.get("/v1/models/games/player")
        await client.get("/no/such/route")
        await client.put("/tokenize")
        await client.request("PURGE", "/nor/this")
        await client.get(CHAT)
        await client.post(f"/r/mine{CHAT}", json={"model": "player", "messages": HI})
        await client.post(CHAT, headers={"authorization": "Bearer wrong"}, json={})
        live.engine.gate = asyncio.Event()
        before = len(live.engine.requests)
        leaving = asyncio.create_task(client.post(CHAT, json={"model": "player", "messages": HI}))
        await until(lambda: len(live.engine.requests) > before)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await until(lambda: live.app.counts.requests.in_flight == 0)
    text, read = await scraped(live.url)
    for route, method, status, number in (
        (CHAT, "POST", "404", 1),
        (CHAT, "GET", "405", 1),
        (CHAT, "POST", "200", 1),
        (CHAT, "POST", "499", 1),
        ("/v1/samples/{sample_id}", "GET", "404", 1),
        ("/v1/models/{model}", "GET", "200", 1),
        ("/tokenize", "other", "405", 1),
        ("(none)", "GET", "404", 1),
        ("(none)", "other", "404", 1),
        ("(none)", "POST", "401", 1),
    ):
        found = read("art_requests_total", route=route, method=method, status=status)
        assert found == number, (route, method, status)
    assert "smp_none" not in text and "nobody" not in text and "/nor/this" not in text


async def test_in_flight_is_what_is_being_answered(live: Live) -> None:
    live.engine.gate = asyncio.Event()
    asked = [
        asyncio.create_task(live.client.chat.completions.create(model="player", messages=HI)) for _ in "ab"
    ]
    await until(lambda: len(live.engine.requests) == 2)
    _, read = await scraped(live.url)
    assert read("art_requests_in_flight") == 3
    live.engine.gate.set()
    await asyncio.gather(*asked)
    _, read = await scraped(live.url)
    assert read("art_requests_in_flight") == 1


async def test_a_reply_that_is_broken_off_has_sampled_tokens(live: Live, renderer: LibraryRenderer) -> None:
    """What a client that went away had sampled was computed all the same."""
    ids = renderer.encode("hello " * 500)
    live.engine.answer = lambda request: Script(ids=ids)
    stream = await live.client.chat.completions.create(model="player", messages=HI, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await until(lambda: live.app.counts.requests.in_flight == 0)
    _, read = await scraped(live.url)
    assert read("art_sampled_tokens_total") == len(next(iter(live.engine.emitted.values())))


async def test_another_step_that_is_served_is_a_promotion(live: Live) -> None:
    _, read = await scraped(live.url)
    assert read("art_promotions_total") is None
    for step in (4, 4, 5):
        live.catalog.publish("games", "player", "tiny", step, f"games/player@{step}")
    _, read = await scraped(live.url)
    assert read("art_promotions_total", base_model="tiny", model="games/player") == 2
    assert read("art_model_step", base_model="tiny", model="games/player") == 5


async def test_two_servers_in_a_process_share_no_number(tmp_path: Path, live: Live) -> None:
    await live.client.chat.completions.create(model="player", messages=HI)
    async with run_world(tmp_path / "other", live.renderer) as other:
        async with listening(other.app, LimitSettings()) as url:
            _, read = await scraped(url, OPERATOR)
    assert read("art_requests_total", route=CHAT) is None


@pytest.fixture
async def world(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[World]:
    async with run_world(tmp_path, renderer) as running:
        yield running


async def test_the_operator_sees_tenants_as_one_and_none_by_name(world: World) -> None:
    for who in ("alice", "bob", "operator"):
        asked = {"model": "player", "messages": HI}
        assert (await world.clients[who].post(CHAT, json=asked)).status_code == 200
    world.catalog.publish(internal_name("bob", "games"), "player", "tiny", 4, None)
    async with listening(world.app, LimitSettings()) as url:
        text, read = await scraped(url, OPERATOR)
    one = read("art_prompt_tokens_total", model="games/player") or 0
    assert one > 0 and read("art_prompt_tokens_total", model=TENANTS) == 2 * one
    assert read("art_promotions_total", model=TENANTS) == 1
    assert read("art_model_step", model="games/player") == 3
    assert read("art_model_step") == 3  # no tenant's
    states = {state: read("art_jobs", state=state) for state in ("queued", "running", "done", "failed")}
    assert states == {"queued": 0, "running": 0, "done": 3, "failed": 0}
    told = [OPERATOR, "alice", "bob", "~", *world.clients["alice"].headers["authorization"].split()[1:]]
    assert [word for word in told if word in text] == []


async def test_the_numbers_are_for_the_operator_alone(world: World) -> None:
    refused = await world.clients["alice"].get("/metrics")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "operator_only")
    asked = {"project": "games", "name": "player", "rollout_id": "mine"}
    for who in ("operator", "alice"):
        opened = (await world.clients[who].post("/art/rollouts", json=asked)).json()
        async with world.client(opened["api_key"]) as scoped:
            assert (await scoped.get("/metrics")).status_code == 403
    for key in ("", "wrong"):
        async with world.client(key) as stranger:
            assert (await stranger.get("/metrics")).status_code == 401


def test_the_number_of_labels_is_bounded() -> None:
    labels = ModelLabels()
    named = {labels.label_of("games", f"player{number}") for number in range(MOST_MODELS + 50)}
    assert len(named) == MOST_MODELS + 1 and OTHERS in named
    assert labels.label_of("games", "player0") == "games/player0"  # keeps its own
    assert {labels.label_of(f"tenant{number}~games", "player") for number in range(50)} == {TENANTS}


async def test_jobs_are_counted_by_an_index_and_not_by_reading_their_requests(world: World) -> None:
    store = world.control.jobs.store
    query = "EXPLAIN QUERY PLAN SELECT state, COUNT(*) FROM jobs GROUP BY state"
    with contextlib.closing(sqlite3.connect(store.path)) as database:
        plan = [row[-1] for row in database.execute(query)]
    assert plan == ["SCAN jobs USING COVERING INDEX by_state"]


async def test_a_blocked_event_loop_shows() -> None:
    lag = LoopLag()
    watch = asyncio.create_task(lag.watch())
    await until(lambda: lag.seconds.cumulative()[-1][1] > 0)
    seen, before = lag.seconds.cumulative()[-1][1], lag.seconds.sum
    time.sleep(1.0)  # noqa: ASYNC251 - this is what is measured: the next call is late by half of it
    await until(lambda: lag.seconds.cumulative()[-1][1] > seen)
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch
    assert lag.seconds.sum - before > 0.4


@pytest.mark.slow
def test_the_library_is_loaded_by_the_first_scrape_alone() -> None:
    program = "import sys, art.server.process; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=DEADLINE_S).returncode == 0
