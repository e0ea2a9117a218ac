"""The pages of the runs under /ui: by a link that was made for a key, each tenant its own, reading only."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from made_run import MadeRun, made_run, trajectory
from tenants_world import OPERATOR, World, run_world

from art.rendering.library import LibraryRenderer
from art.server.process import with_origins
from art.wire.jobs import TrainJobRequest
from art.wire.training import OptimizerSpec
from art_extensions.ui import run_reader
from art_extensions.ui.access import HEADERS, Viewer
from art_extensions.ui.app import THREADS
from art_extensions.ui.run_files import RunFiles, StoredRows
from art_extensions.ui.run_history import Histories
from waiting import until

RUN = "/ui/runs/-/games/player"
PLACES = ("", "/costs", "/rollouts", "/rollouts.json", "/version", "/train/2", "/train/2/0", "/train/2/0/0")
PLACES += ("/train/2/0/0/text?turn=0",)


@pytest.fixture
async def world(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[World]:
    """alice has `games/player`, bob has that and `secrets/plan`, each with texts of its own."""
    async with run_world(tmp_path, renderer) as running:
        for who in ("alice", "bob"):
            _fill(tmp_path, f"{who}~games", "player", who)
        _fill(tmp_path, "bob~secrets", "plan", "bob")
        _fill(tmp_path, "games", "player", "operator")
        yield running
        running.app.pages.close()


def _fill(root: Path, project: str, name: str, who: str) -> None:
    """Gives a model a step 2 whose texts name its owner."""
    folder = root / project / "models" / name
    kept = folder.with_name("kept")
    if folder.exists():
        folder.rename(kept)
    made = MadeRun(root, project=project, name=name)
    made.step(2, [[trajectory(f"{who}-0", 1.0, f"{who}answer", text=f"{who}question")]])
    if kept.exists():
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        shutil.rmtree(kept)


def browser(world: World, host: str = "127.0.0.1:7000") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url=f"http://{host}")


async def opened(world: World, who: str) -> httpx.AsyncClient:
    """A browser that has used a link of this one's key."""
    made = await world.clients[who].post("/art/ui-link")
    assert made.status_code == 200, made.text
    there = browser(world)
    entered = await there.get(made.json()["path"])
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "path=/ui" in cookie
    assert 'url=/ui/"' in entered.text and OPERATOR not in entered.text + made.text
    return there


async def test_a_link_opens_one_browser_and_is_made_for_a_key_alone(world: World) -> None:
    stranger = browser(world)
    assert (await stranger.post("/art/ui-link")).status_code == 401
    refused = await stranger.get("/ui/")
    assert refused.status_code == 401 and "has not opened a link" in refused.text
    path = (await world.clients["alice"].post("/art/ui-link")).json()["path"]
    assert (await stranger.head(path)).status_code == 401  # a look at the link alone does not use it up
    assert (await stranger.get(path)).status_code == 200
    assert (await stranger.get("/ui/")).status_code == 200
    late = browser(world)
    assert (await late.get(path)).status_code == 401 and (await late.get("/ui/")).status_code == 401
    keys = {"theirs": {"project": "games", "name": "player", "rollout_id": "r"}}
    scoped = (await world.clients["alice"].post("/art/rollouts", json=keys["theirs"])).json()["api_key"]
    async with world.client(scoped) as rollout:
        assert (await rollout.post("/art/ui-link")).status_code == 403
        assert (await rollout.get("/ui/")).status_code == 401  # no key opens a page


async def test_a_tenant_sees_its_own_and_every_address_of_another_is_unknown(world: World) -> None:
    for who, other in (("alice", "bob"), ("bob", "alice")):
        there = await opened(world, who)
        runs = (await there.get("/ui/")).text
        assert 'href="/ui/runs/-/games/player"' in runs and other not in runs and "~" not in runs
        assert ("secrets" in runs) == (who == "bob")
        for place in PLACES:
            found = await there.get(RUN + place)
            assert found.status_code == 200, place
            assert other not in found.text and f"{who}~" not in found.text, place
            assert "operator" not in found.text, place
        assert f"{who}question" in (await there.get(f"{RUN}/train/2/0/0")).text
    alice = await opened(world, "alice")
    foreign = ("secrets/plan", "bob~secrets/plan", "bob~games/player", "alice~games/player", "%7E/player")
    for name in foreign:
        for place in PLACES:
            found = await alice.get(f"/ui/runs/-/{name}{place}")
            assert found.status_code == 404 and "bobquestion" not in found.text, (name, place)
            assert str(world.ledger.path.parent) not in found.text
        compared = await alice.get(f"/ui/compare?run=-/{name}")
        assert "There is no run" in compared.text and "uplot" not in compared.text.partition("<main")[2]
    operator = await opened(world, "operator")
    runs = (await operator.get("/ui/")).text
    for name in ("games/player", "alice~games/player", "bob~secrets/plan"):
        assert f"/ui/runs/-/{name}" in runs


async def test_jobs_and_rollouts_of_now_are_those_of_the_key(world: World) -> None:
    chat = {"model": "player", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
    for who in ("alice", "bob"):
        asked = {"project": "games", "name": "player", "rollout_id": f"of-{who}"}
        await world.clients[who].post("/art/rollouts", json=asked)
        await world.clients[who].post(
            "/v1/chat/completions", json=chat, headers={"x-art-rollout": f"by-{who}"}
        )
        job = TrainJobRequest(job_id=f"{who}~now", groups=[], optimizer=OptimizerSpec(learning_rate=1.0))
        await world.control.jobs.store.submit(f"{who}~games", "player", job)
    there = {who: (await (await opened(world, who)).get("/ui/live.json")).json() for who in world.clients}
    for who in ("alice", "bob"):
        assert [row["cells"][:2] for row in there[who]["jobs"]] == [["games/player", "now"]]
        assert {row["cells"][0] for row in there[who]["rollouts"]} == {f"of-{who}", f"by-{who}"}
    assert len(there["operator"]["jobs"]) == 2 and len(there["operator"]["rollouts"]) == 4
    foreign = await (await opened(world, "alice")).get("/ui/live?run=-/secrets/plan")
    assert foreign.status_code == 404


async def test_a_rollout_with_the_name_of_anothers_shows_no_completion_of_it(world: World) -> None:
    chat = {"model": "player", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
    told = await world.clients["bob"].post("/v1/chat/completions", json=chat, headers={"x-art-rollout": "x"})
    sample = told.json()["choices"][0]["sample_id"]
    record = world.control.layout.data_dir / "alice~games/models/player/steps/0002/rollouts.jsonl"
    first, *rest = record.read_text().splitlines()
    stolen = [json.dumps({**json.loads(first), "samples": ids, "rollout": "x"}) for ids in ([sample], [])]
    for line in stolen:
        record.write_text("\n".join([line, *rest]) + "\n")
        there = await opened(world, "alice")
        page = (await there.get(f"{RUN}/train/2/0/0")).text
        assert "bobsword" not in page and 'id="sample-' not in page


async def test_a_revoked_key_closes_its_browsers_and_links(world: World) -> None:
    there = await opened(world, "alice")
    link = (await world.clients["alice"].post("/art/ui-link")).json()["path"]
    world.tenants.revoke("alice")
    world.tenants.create("alice")  # another key is another owner

    async def closed() -> bool:
        return (await there.get("/ui/")).status_code == 401

    await until(closed)
    assert (await browser(world).get(link)).status_code == 401
    assert (await (await opened(world, "bob")).get("/ui/")).status_code == 200


async def test_hosts_are_this_machines_and_that_of_the_link(world: World) -> None:
    made = await world.clients["alice"].post("http://gpu.example.org:8000/art/ui-link")
    path = made.json()["path"]
    assert (await browser(world, "evil.example.org").get(path)).status_code == 421
    async with browser(world, "gpu.example.org:8000") as known:
        assert (await known.get(path)).status_code == 200 and (await known.get(RUN)).status_code == 200
        cookie = {"cookie": "; ".join(f"{name}={value}" for name, value in known.cookies.items())}
    other = (await world.clients["bob"].post("http://bob.example.org/art/ui-link")).json()["path"]
    for host, status in (("evil.example.org", 421), ("bob.example.org", 401), ("localhost:9", 200)):
        assert (await browser(world, host).get(RUN, headers=cookie)).status_code == status, host
    assert (await browser(world, "gpu.example.org:8000").get(other)).status_code == 401


async def test_pages_are_for_reading_with_all_headers_and_no_other_site_reads_them(world: World) -> None:
    there = await opened(world, "alice")
    shared = httpx.ASGITransport(with_origins(world.app, ["*"]))
    page = httpx.AsyncClient(transport=shared, base_url="http://127.0.0.1", cookies=there.cookies)
    async with page:
        for path in ("/ui/", RUN, "/ui/static/pages.css", "/ui/nothing"):
            found = await page.get(path, headers={"origin": "http://evil.example"})
            assert {name: found.headers[name] for name in HEADERS} == dict(HEADERS), path
            assert not [name for name in found.headers if name.startswith("access-control-")], path
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            asked = await page.request(method, RUN, headers={"origin": "http://evil.example"})
            assert asked.status_code == 405 and "access-control-allow-origin" not in asked.headers
        assert (await page.get("/v1/models", headers={"origin": "http://a.example"})).headers[
            "access-control-allow-origin"
        ]


async def test_every_link_of_a_page_stays_under_the_mount(world: World) -> None:
    there = await opened(world, "operator")
    assert (await there.get("/ui")).headers["location"].endswith("/ui/")
    for place in (
        "/ui/",
        "/ui/live",
        RUN,
        f"{RUN}/train/2",
        f"{RUN}/train/2/0",
        f"{RUN}/train/2/0/0",
        f"{RUN}/rollouts",
    ):
        page = (await there.get(place)).text
        links = re.findall(r'\b(?:href|src|action|data-(?:run|address|live|now))="([^"#][^"]*)"', page)
        assert len(links) > 9 and all(link.startswith("/ui/") for link in links), place
        for link in {one for one in links if "/static/" in one}:
            assert (await there.get(link)).status_code == 200, link


async def test_without_the_extra_the_server_goes_on_and_says_so_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "jinja2" or name == "art_extensions.ui.app"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with caplog.at_level(logging.WARNING, logger="art.server"):
        for _ in range(2):
            found = await browser(world).get("/ui/")
            assert found.status_code == 501 and "jinja2" in found.text and "[ui]" in found.text
        refused = await world.clients["alice"].post("/art/ui-link")
        assert refused.status_code == 501 and "[ui]" in refused.json()["error"]["message"]
        assert (await world.clients["alice"].get("/v1/models")).status_code == 200
    assert len([one for one in caplog.records if "cannot be shown" in one.message]) == 1


async def test_a_damaged_run_is_told_to_a_tenant_without_the_folders_of_the_server(world: World) -> None:
    root = world.control.layout.data_dir
    (root / "alice~games/models/player/trajectories/train/0002.parquet").write_bytes(b"no parquet")
    (root / "alice~games/models/player/steps/0002/rollouts.jsonl").unlink()
    there = await opened(world, "alice")
    for place in PLACES:
        page = (await there.get(RUN + place)).text
        assert str(root) not in page and "alice~" not in page, place
    made_run(root.parent / "beside")  # what lies beside the folder is not of the server
    assert "beside" not in (await there.get("/ui/")).text


async def test_pages_that_take_long_are_few_at_a_time_and_hold_up_no_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {who: await opened(world, who) for who in ("alice", "bob", "operator")}
    go_on, reading, seen = threading.Event(), list[str | None](), list[int]()
    find_runs = run_reader.find_runs

    def wait(root: Path, viewer: Viewer, stored: StoredRows, kept: Histories) -> dict[str, RunFiles]:
        reading.append(viewer.tenant)
        seen.append(len(reading))
        go_on.wait(60)
        reading.remove(viewer.tenant)
        return find_runs(root, viewer, stored, kept)

    monkeypatch.setattr(run_reader, "find_runs", wait)
    asked = [
        asyncio.create_task(there[who].get("/ui/")) for who in ("alice", "alice", "alice", "bob", "operator")
    ]
    await until(lambda: len(reading) == THREADS)
    assert (await world.clients["bob"].get("/v1/models")).status_code == 200
    assert sorted(map(str, reading)) == ["alice", "bob"]  # one of each: they take turns
    go_on.set()
    assert [one.status_code for one in await asyncio.gather(*asked)] == [200] * 5
    assert max(seen) == THREADS
