"""The server's end of the placer's lines, with a placer whose behaviour is chosen."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from art.errors import ConfigurationError, DeadlineError, WorkerDiedError
from art.server.cluster_settings import ClusterSettings
from art_extensions.cluster.messages import HostOrder, PlaceOrder
from art_extensions.cluster.placer_link import PlacerLink
from art_extensions.cluster.plan import NodeRow, WorkerBundle
from waiting import gone, until

pytestmark = pytest.mark.slow

# It counts its lives in a file; `deaf` answers no order, `dies` ends at the first one of its first life.
PLACER = """
import json, pathlib, sys
folder, behaviour = pathlib.Path(sys.argv[1]), sys.argv[2]
lives = folder / "lives"
life = len(lives.read_text()) if lives.exists() else 0
lives.write_text("x" * (life + 1))

def tell(**line):
    print(json.dumps(line), flush=True)

start = json.loads(sys.stdin.readline())
assert set(start) == {"address", "host", "trust_network"}
if behaviour == "refuses":
    tell(ready=False, error="it asks nobody for a token", refused=True)
    raise SystemExit(2)
if behaviour == "no cluster":
    tell(ready=False, error="nobody answers")
    raise SystemExit(3)
if behaviour == "breaks":
    raise SystemExit("no ray here")
tell(ready=True, node="127.0.0.2", cluster="127.0.0.2:6379", ray="2", authenticated=True)
node = {"id": "a", "address": "127.0.0.11", "totals": {"CPU": 2.0}}
tell(nodes=[{**node, "alive": True}])
shelf = {"url": "http://127.0.0.11:1", "read_key": "r", "order_key": "o", "written": "/w"}
for line in sys.stdin:
    order = json.loads(line)
    if behaviour == "dies" and not life:
        raise SystemExit(1)
    if behaviour == "deaf":
        continue
    if "place" in order:
        host = {"nonce": order["place"]["host"]["nonce"], "url": "http://127.0.0.11:1", "node": "127.0.0.11"}
        host |= {"node_id": "a", "shelf": shelf, "pid": life, "version": "1", "python": "3"}
        tell(id=order["id"], placed=host)
    elif "release" in order:
        tell(id=order["id"], released=[order["release"]])
        tell(nodes=[{**node, "alive": False, "why_dead": "its power failed"}])
    else:
        tell(id=order["id"], error={"kind": "WorkerDiedError", "message": "the cluster is away"})
"""

Linked = Callable[[str], Any]


@pytest.fixture
async def link_to(tmp_path: Path) -> AsyncIterator[Linked]:
    async with AsyncExitStack() as stack:

        async def start(behaviour: str) -> tuple[PlacerLink, list[Sequence[NodeRow]]]:
            told: list[Sequence[NodeRow]] = []
            command = [sys.executable, "-c", PLACER, str(tmp_path), behaviour]
            settings = ClusterSettings(address="auto")
            link = await PlacerLink.start(settings, tmp_path / "placer.log", told.append, command)
            stack.push_async_callback(link.close)
            return link, told

        yield start


def place_order(name: str = "art/x/engine") -> PlaceOrder:
    host = HostOrder(nonce="n1", key="k", version="1", lease=60, shelf=None, shelf_bytes=1)
    return PlaceOrder(name=name, bundle=WorkerBundle(cpus=1, gpus=0), host=host, deadline=60)


async def test_orders_are_answered_and_nodes_told(link_to: Linked) -> None:
    link, told = await link_to("works")
    assert link.ready.authenticated and [node.address for node in link.nodes] == ["127.0.0.11"]
    answers = await asyncio.gather(*(link.place(place_order(f"art/x/{number}")) for number in range(20)))
    assert {answer.nonce for answer in answers} == {"n1"}
    await link.release("art/x/0", 60)
    await until(lambda: len(told) == 2)
    assert not told[1][0].alive and told[1][0].why_dead == "its power failed"
    with pytest.raises(WorkerDiedError, match="the cluster is away"):
        await link.sweep("art/x/", 60)


async def test_what_was_asked_of_a_placer_that_died_is_asked_of_the_next_one(link_to: Linked) -> None:
    link, _ = await link_to("dies")
    assert (await link.place(place_order())).pid == 1, "the second life answered"
    assert link.restarts == 1 and link.state == "up"


async def test_a_killed_placer_is_started_again_without_being_asked(link_to: Linked) -> None:
    link, _ = await link_to("works")
    first = link.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: link.restarts == 1)
    assert link.pid != first and (await link.place(place_order())).pid == 1


async def test_a_cluster_that_may_not_be_used_is_a_fault_of_the_settings(link_to: Linked) -> None:
    with pytest.raises(ConfigurationError, match=r"cluster auto cannot be used: it asks nobody for a token"):
        await link_to("refuses")
    with pytest.raises(WorkerDiedError, match="nobody answers"):
        await link_to("no cluster")
    with pytest.raises(WorkerDiedError, match="no ray here"):
        await link_to("breaks")


async def test_no_answer_ends_at_its_deadline_and_with_the_link(link_to: Linked) -> None:
    link, _ = await link_to("deaf")
    with pytest.raises(DeadlineError, match=r"did not answer within 0\.2 s \(it is up\)"):
        await link.release("art/x/engine", 0.2)
    waiting = asyncio.create_task(link.place(place_order()))
    await asyncio.sleep(0)
    pid = link.pid
    await link.close()
    with pytest.raises(WorkerDiedError, match="closed with its server"):
        await waiting
    assert gone(pid)
