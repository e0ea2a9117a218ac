"""The jobs and rollouts of now, from the files of a server that runs, and of one that is gone."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from made_run import MadeRun, begin_job, made_run
from served_pages import Watched
from starlette.testclient import TestClient

from art.process.files import take_lock
from art_extensions.ui.access import EVERYBODY, Viewer
from art_extensions.ui.app import RunPages
from waiting import eventually


def sample_now(root: Path, *rollouts: str, opened: str | None = None) -> None:
    """Makes the samples of these rollouts those of this second; one more rollout is open and has none."""
    with closing(sqlite3.connect(root / "server" / "ledger.sqlite")) as file, file:
        for rollout in rollouts:
            file.execute("UPDATE samples SET created_at = ? WHERE rollout_id = ?", (time.time(), rollout))
        if opened is not None:
            scope = json.dumps({"project": "games", "name": "player"})
            values = ("", opened, scope, time.time() - 7, time.time() + 900)
            file.execute("INSERT INTO rollouts VALUES (?, ?, ?, ?, ?, NULL)", values)


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[Path]:
    """A folder that a server holds, with a job that runs, one that waits and two rollouts."""
    made_run(tmp_path)
    MadeRun(tmp_path, name="other")
    begin_job(tmp_path, "running-job", done=512)
    begin_job(tmp_path, "waiting-job", name="other")
    sample_now(tmp_path, "s2a", opened="scoped")
    held = take_lock(tmp_path / "server" / "lock")
    assert held is not None
    yield tmp_path
    os.close(held)


def test_jobs_and_rollouts_of_a_running_server(alive: Path, read: Callable[[str], str]) -> None:
    said = read("/live")
    assert "Now alive 2 jobs, 2 rollouts lately." in said
    assert (
        "games/player running-job training 512 of 2,000" in said and "games/other waiting-job waits" in said
    )
    assert "s2a games/player 0 2" in said and re.search(r"scoped games/player – open for [\w. ]+ 0 0", said)
    of_one = read("/live?run=-/games/other")
    assert "waiting-job" in of_one and "running-job" not in of_one and "s2a" not in of_one
    assert "Its jobs and rollouts now" in read("/runs/-/games/player")


CLUSTER = {
    "address": "127.0.0.2:6379",
    "nodes": [
        {"address": "127.0.0.11", "id": "a", "state": "up", "resources": {"CPU": 4.0, "GPU": 8.0}},
        {"address": "127.0.0.12", "id": "b", "state": "drained", "resources": {"CPU": 2.0}},
    ],
    "workers": [
        {"name": "engine-nano-0", "node": "127.0.0.11", "pid": 4711, "lease_age": 1.5, "lease": 60.0},
        {"name": "trainer-nano", "node": "127.0.0.11", "pid": 4712, "lease_age": 0.5, "lease": 60.0},
    ],
}


def write_cluster(root: Path, written_at: float) -> None:
    (root / "server" / "cluster.json").write_text(json.dumps({**CLUSTER, "written_at": written_at}))


def test_the_nodes_of_a_cluster_and_what_runs_on_them(alive: Path, read: Callable[[str], str]) -> None:
    assert json.loads(read_json(alive))["nodes"] == []
    write_cluster(alive, time.time() - 30)
    found = json.loads(read_json(alive))
    assert [row["cells"] for row in found["nodes"]] == [
        ["127.0.0.11", "up", "4", "8", "2"],
        ["127.0.0.12", "drained", "2", "0", "0"],
    ]
    first, second = (row["cells"] for row in found["placements"])
    assert first[:3] == ["engine-nano-0", "127.0.0.11", "4711"] and first[4] == "1 min 0 s"
    assert second[:2] == ["trainer-nano", "127.0.0.11"]
    assert re.fullmatch(r"3[1-9]\.\d s ago", first[3])  # since the file was written, too
    said = read("/live")
    assert "Cluster Node State CPUs GPUs Workers 127.0.0.11 up 4 8 2 127.0.0.12 drained 2 0 0" in said
    assert "Workers on nodes" in said and "trainer-nano 127.0.0.11 4712" in said


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nodes": 7, "workers": [], "written_at": 0}', "\x00"])
def test_a_damaged_record_of_the_cluster_hides_it(alive: Path, read: Callable[[str], str], text: str) -> None:
    (alive / "server" / "cluster.json").write_text(text)
    assert json.loads(read_json(alive))["nodes"] == []
    assert "Now alive" in read("/live")


def test_tenants_and_dead_servers_show_no_nodes(tmp_path: Path, alive: Path) -> None:
    write_cluster(alive, time.time())
    assert json.loads(read_json(alive, Viewer("alice", "alice~")))["nodes"] == []
    dead = tmp_path / "dead"
    made_run(dead)
    write_cluster(dead, time.time())
    found = json.loads(read_json(dead))
    assert found["nodes"] == found["placements"] == []


def read_json(root: Path, viewer: Viewer = EVERYBODY) -> str:
    pages = RunPages(root, viewer)
    try:
        return TestClient(pages.app()).get("/live.json").text
    finally:
        pages.reader.close()


def test_a_run_whose_server_is_gone_says_so_and_shows_what_it_left(
    tmp_path: Path, read: Callable[[str], str]
) -> None:
    made_run(tmp_path)
    begin_job(tmp_path, "left", done=512)
    for path in ("/live", "/live?run=-/games/player"):
        said = read(path)
        assert "Now dead Server not running" in said and "left training 512 of 2,000" in said
        assert "No rollout is open" in said
    assert "with a job running" in read("/live?run=-/games/player")


def test_damaged_files_and_an_empty_folder_have_words(tmp_path: Path, read: Callable[[str], str]) -> None:
    assert "Server not running. Last recorded state:" in read("/live")
    made_run(tmp_path)
    for name in ("jobs", "ledger"):
        (tmp_path / "server" / f"{name}.sqlite").write_bytes(b"no database")
    assert "No job waits or runs." in read("/live") and "No rollout is open" in read("/live")
    assert "There is no run -/games/nobody" in read("/live?run=-/games/nobody")


def test_a_tenant_sees_its_own_jobs_and_rollouts(alive: Path) -> None:
    MadeRun(alive, project="alice~games")
    begin_job(alive, "alice~mine", project="alice~games", done=5)
    with closing(sqlite3.connect(alive / "server" / "ledger.sqlite")) as file, file:
        file.execute("UPDATE samples SET tenant = 'alice', project = 'alice~games' WHERE sample_id = 's2a-1'")
    pages = RunPages(alive, Viewer("alice", "alice~"))
    found = TestClient(pages.app()).get("/live.json").json()
    pages.reader.close()
    assert [row["cells"][:2] for row in found["jobs"]] == [["games/player", "mine"]]
    assert [row["cells"][:2] for row in found["rollouts"]] == [["s2a", "games/player"]]
    assert found["rollouts"][0]["cells"][4] == "1" and "~" not in json.dumps(found)


@pytest.mark.slow
def test_the_page_follows_rests_while_hidden_and_ends(alive: Path, watch: Callable[..., Watched]) -> None:
    shown = watch(alive)
    asked = list[str]()
    shown.page.on("request", lambda one: asked.append(one.url) if "live.json" in one.url else None)
    shown.page.clock.install()
    page = shown.open("/live")

    def hide(value: bool) -> None:
        shown.evaluate(
            f"Object.defineProperty(document, 'hidden', {{value: {json.dumps(value)}, configurable: true}});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )

    def look() -> None:
        with page.expect_response("**/live.json"):
            page.clock.run_for(2100)

    def rests(seconds: int) -> bool:
        before = len(asked)
        page.clock.run_for(1000 * seconds)
        page.title()  # what was asked is told by now
        return len(asked) == before

    begin_job(alive, "another-one")
    look()
    page.get_by_role("cell", name="another-one").wait_for()
    hide(True)
    assert rests(600)
    begin_job(alive, "one-more")
    hide(False)
    look()
    page.get_by_role("cell", name="one-more").wait_for()

    def ended() -> bool:
        page.clock.fast_forward("40:00")
        return page.get_by_text("stopped after 30 minutes").is_visible()

    eventually(ended)
    assert rests(600)
    page.get_by_role("button", name="Refresh again").click()
    look()
    page.get_by_text("4 jobs").wait_for()
    assert shown.reports == []
    page.route("**/live.json", lambda route: route.abort())

    def closed() -> bool:
        page.clock.run_for(2100)
        return page.get_by_text("These pages are closed").is_visible()

    eventually(closed)
    assert page.locator("[data-now-state]").inner_text() == "no answer" and rests(600)
