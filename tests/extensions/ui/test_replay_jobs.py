"""A step is replayed from its page: a process of its own, one for a run, and the run stays as it is."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from served_pages import ServedPages, Watched
from starlette.testclient import TestClient

sys.path.append(str(Path(__file__).parents[1] / "replay"))
from replayed_run import make_run

from art_extensions.ui.app import KEY_HEADER, RunPages
from art_extensions.ui.replay_jobs import MODULE, ReplayJobs
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.extension]

STEP = "/runs/-/games/player/train/1"
REPLAY = f"{STEP}/replay"
OTHER = "/runs/-/games/player/train/2/replay"
PATIENCE_S = 120


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    asyncio.run(make_run(folder, algorithm="grpo"))
    return folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of the pages, which is empty afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def everything(folder: Path) -> dict[str, tuple[int, str]]:
    """The index of the pages is what they may write."""
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("ui-index.sqlite")
    }


class Browser:
    """A browser that was let in, without scripts."""

    def __init__(self, served: ServedPages) -> None:
        self.client = httpx.Client(base_url=served.address, headers={"origin": served.address})
        assert self.client.get(f"/?token={served.tokens[-1]}").status_code == 200
        self.key = self.client.get(STEP).text.partition('data-key="')[2].partition('"')[0]

    def start(self, path: str = REPLAY, **headers: str) -> httpx.Response:
        return self.client.post(path, headers={KEY_HEADER: self.key, **headers})

    def state(self, path: str = REPLAY) -> dict[str, Any]:
        return dict(self.client.get(path).json())

    def end(self, path: str = REPLAY) -> dict[str, Any]:
        eventually(lambda: self.state(path)["state"] != "running", timeout=PATIENCE_S)
        return self.state(path)


def test_a_step_is_replayed_once_and_the_run_stays_as_it_is(
    recorded: Path, serve: Callable[..., ServedPages], temporary: Path
) -> None:
    before = everything(recorded)
    browser = Browser(serve(recorded))
    assert browser.state() == {"state": "none", "words": "", "text": ""}
    first, second = browser.start(), browser.start()  # a double click
    assert first.status_code == second.status_code == 202
    assert second.json()["state"] == "running" and len([*temporary.iterdir()]) == 1
    assert "disabled" in browser.client.get(STEP).text.partition("data-replay-start")[2][:12]
    phases = set[str]()

    def ended() -> bool:
        found = browser.state()
        phases.add(found["words"].partition(" s. ")[2])
        return bool(found["state"] != "running")

    eventually(ended, timeout=PATIENCE_S)
    found = browser.state()
    assert found["state"] == "same", found
    assert found["text"] == "step 1 of games/player: bit-equal, 168 tensors"
    assert "It loads the model." in phases
    assert found["text"] in browser.client.get(STEP).text
    assert everything(recorded) == before and not [*temporary.iterdir()]


def test_a_record_that_is_missing_is_said_and_may_be_tried_again(
    recorded: Path, serve: Callable[..., ServedPages], tmp_path: Path, temporary: Path
) -> None:
    run = Path(shutil.copytree(recorded, tmp_path / "run"))
    shutil.rmtree(run / "games" / "models" / "player" / "checkpoints" / "0000")
    before = everything(run)
    browser = Browser(serve(run))
    for _ in range(2):
        assert browser.start().status_code == 202
        found = browser.end()
        assert (
            found["state"] == "refused" and "step 1 of games/player began with is not there" in found["text"]
        )
    assert everything(run) == before and not [*temporary.iterdir()]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({KEY_HEADER: "another"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"cookie": "art-ui-1=x"}, 401),
        ({"host": "evil.example"}, 421),
    ],
)
def test_only_a_page_of_these_may_start_one(
    recorded: Path, serve: Callable[..., ServedPages], headers: dict[str, str], status: int
) -> None:
    browser = Browser(serve(recorded))
    assert browser.start(**headers).status_code == status
    assert browser.state()["state"] == "none"
    assert browser.start(f"{STEP}9/replay").status_code == 404
    assert browser.start(STEP).status_code == 405


def test_a_mounted_page_starts_none(recorded: Path, serve: Callable[..., ServedPages]) -> None:
    served = serve(recorded, "/ui")
    origin = served.address.removesuffix("/ui")
    with httpx.Client(base_url=served.address, headers={"origin": origin}) as client:
        client.get(f"/?token={served.tokens[-1]}")
        page = client.get(STEP).text
        assert "start no replay" in page and "data-replay-start" not in page
        assert client.post(REPLAY, headers={KEY_HEADER: ""}).status_code == 405
        assert client.get(REPLAY).status_code == 404


@contextmanager
def pages_of(root: Path, *, deadline: float = PATIENCE_S) -> Iterator[tuple[TestClient, dict[str, str]]]:
    jobs = ReplayJobs(deadline=deadline)
    pages = RunPages(root, replays=jobs)
    try:
        yield TestClient(pages.app()), {KEY_HEADER: jobs.key}
    finally:
        jobs.close()
        pages.reader.close()


def stopped_children() -> list[psutil.Process]:
    """The replays of this process, which from now on stand still."""
    found = [one for one in psutil.Process().children() if MODULE in one.cmdline()]
    for one in found:
        one.suspend()
    return found


def test_one_step_of_a_run_at_a_time_and_closed_pages_leave_no_process(
    recorded: Path, temporary: Path
) -> None:
    with pages_of(recorded) as (client, key):
        assert client.post(REPLAY, headers=key).json()["state"] == "running"
        eventually(stopped_children)
        (process,) = stopped_children()
        other = client.post(OTHER, headers=key)
        assert other.status_code == 409 and other.json()["state"] == "none"
        assert other.json()["words"] == "Step 1 of this run is being replayed: wait for its end."
        assert client.post(REPLAY, headers=key).status_code == 202
        assert stopped_children() == [process]
    assert not process.is_running() and not [*temporary.iterdir()]
    with pages_of(recorded) as (client, key):
        assert client.post(OTHER, headers=key).status_code == 202, (
            "another run of the pages knows nothing of it"
        )


def test_a_replay_that_stands_still_is_ended_at_its_deadline(recorded: Path, temporary: Path) -> None:
    with pages_of(recorded, deadline=4.0) as (client, key):
        client.post(REPLAY, headers=key)
        eventually(stopped_children)
        (process,) = stopped_children()
        eventually(lambda: client.get(REPLAY).json()["state"] != "running")
        found = client.get(REPLAY).json()
        assert found["state"] == "failed" and found["words"] == "The replay took more than 4 s and was ended."
        assert not process.is_running()
        eventually(lambda: not [*temporary.iterdir()])


def test_a_replay_that_is_killed_says_so(recorded: Path) -> None:
    with pages_of(recorded) as (client, key):
        client.post(REPLAY, headers=key)
        eventually(stopped_children)
        stopped_children()[0].kill()
        eventually(lambda: client.get(REPLAY).json()["state"] != "running")
        assert client.get(REPLAY).json()["words"] == "The replay ended with code -9."


def test_a_button_starts_it_and_the_page_shows_its_end(recorded: Path, watch: Callable[..., Watched]) -> None:
    shown = watch(recorded)
    page = shown.open(STEP)
    page.get_by_text("Replay this step").click()
    button = page.get_by_role("button", name="Replay now")
    button.dblclick()
    page.wait_for_function("document.querySelector('[data-replay-start]').disabled")
    assert page.locator("[data-replay-words]").inner_text().startswith("Running for")
    text = page.locator("[data-replay-text]")
    text.wait_for(state="visible")
    assert text.inner_text() == "step 1 of games/player: bit-equal, 168 tensors"
    assert "bit-equal to the recorded one" in page.locator("[data-replay-words]").inner_text()
    assert button.is_enabled() and shown.reports == []
