"""What ended sessions held is freed: whoever is dead, whatever fails, and after a kill."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scripted_service import ScriptedServer, serving

from art_extensions.tinker import leftovers, sessions
from art_extensions.tinker import store as store_module
from art_extensions.tinker.runs import TrainingRuns
from waiting import until

pytestmark = pytest.mark.slow  # the store is on disk
FREED = [("release",), ("delete",)]
TENANT = "tml-ann"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sessions are looked after all the time."""
    monkeypatch.setattr(sessions, "LOOK_S", 0.01)
    monkeypatch.setattr(leftovers, "AGAIN_S", 0.0)
    return monkeypatch


def frees(server: ScriptedServer) -> list[tuple[Any, ...]]:
    return [one for one in server.calls if one in FREED]


async def test_a_dead_tenant_holds_up_no_other_session(tmp_path: Path, impatient: pytest.MonkeyPatch) -> None:
    own, ann = ScriptedServer(), ScriptedServer()
    async with serving(tmp_path, own, {"ann": ann}) as client:
        operator, client.key = client.key, TENANT
        await client.model(await client.session())
        client.key = operator
        await client.model(await client.session())
    impatient.setattr(sessions, "SILENT_S", 0.0)
    async with serving(tmp_path, own, {"ann": ann}) as client:  # nobody is heard after the restart
        await until(lambda: frees(own) == FREED)
        assert frees(ann) == []
        client.key = TENANT
        await client.session()
        await until(lambda: frees(ann) == FREED)


async def test_what_could_not_be_freed_is_tried_again(tmp_path: Path, impatient: pytest.MonkeyPatch) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        session = await client.session()
        await client.model(session)
        server.failures = 2
        await client.finish(session)
        await until(lambda: frees(server) == FREED)
        assert server.failures == 0


async def test_a_release_that_does_not_end_holds_up_no_look(
    tmp_path: Path, impatient: pytest.MonkeyPatch
) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        first, second = await client.session(), await client.session()
        await client.model(first)
        server.deaf = True
        ending = asyncio.create_task(client.finish(first))
        await until(lambda: server.kept_waiting)
        impatient.setattr(sessions, "SILENT_S", 0.0)

        async def is_over() -> bool:
            return (await client.post("session_heartbeat", {"session_id": second})).status_code == 404

        await until(is_over)
        assert frees(server) == []
    server.deaf = False
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    async with serving(tmp_path, server):
        await until(lambda: frees(server) == FREED)


async def test_an_end_that_a_kill_cut_short_goes_on(tmp_path: Path, impatient: pytest.MonkeyPatch) -> None:
    server = ScriptedServer()
    cut = asyncio.Event()

    async def killed(runs: TrainingRuns, session_id: str) -> None:
        cut.set()
        await asyncio.Event().wait()

    async with serving(tmp_path, server) as client:
        session = await client.session()
        model = await client.model(session)
        stuck = await client.step(model, 9)  # the numbers before it never come
        with impatient.context() as patched:
            patched.setattr(TrainingRuns, "end_session", killed)
            ending = asyncio.create_task(client.finish(session))
            await cut.wait()
            ending.cancel()
    server.calls.clear()
    async with serving(tmp_path, server) as client:
        assert await client.result(stuck) == {"error": "the session has ended", "category": "user"}
        await until(lambda: frees(server)[:2] == FREED)
        assert {one[0] for one in server.calls} == {"release", "delete"}


def let_pass(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    began = store_module.steady_time
    monkeypatch.setattr(store_module, "steady_time", lambda: began() + seconds)


async def test_the_files_of_an_ended_session_go_with_its_last_saved_weights(
    tmp_path: Path, impatient: pytest.MonkeyPatch
) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        session = await client.session()
        model = await client.model(session)
        short = await client.save(model, 1, "short", ttl_seconds=3600)
        long = await client.save(model, 2, "long", ttl_seconds=7200)
        kept = await client.save(model, 3, "kept")
        await client.finish(session)
        assert frees(server) == [("release",)] and set(await client.listed()) == {short, long, kept}
        let_pass(impatient, 3601)
        assert set(await client.listed()) == {long, kept}
        await client.delete(kept)
    async with serving(tmp_path, server) as client:
        assert await client.listed() == [long] and frees(server) == [("release",)]
        let_pass(impatient, 3601)
        await until(lambda: frees(server) == FREED)
        assert server.deleted == [f"{session}-0"] and await client.listed() == []


async def test_the_files_stay_for_a_sampler_of_another_session(
    tmp_path: Path, impatient: pytest.MonkeyPatch
) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        trained, samples, other = [await client.session() for _ in range(3)]
        path = await client.save(await client.model(trained), 1, "one")
        asked = {"session_id": samples, "sampling_session_seq_id": 0, "model_path": path}
        assert (await client.post("create_sampling_session", asked)).status_code == 200
        await client.finish(trained)
        await client.delete(path)
        await client.model(other)
        server.failures = 1
        await client.finish(other)  # left to the watch, which looks at the older one first
        await until(lambda: server.deleted)
        assert server.deleted == [f"{other}-0"]
        await client.finish(samples)
        await until(lambda: server.deleted == [f"{other}-0", f"{trained}-0"])
