"""Who gets the pages: one browser for each printed address, under this machine's names, for reading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from made_run import made_run
from starlette.testclient import TestClient

from art_extensions.ui.access import HEADERS, GuardedPages, PrintedAccess
from art_extensions.ui.app import guarded_pages

PORT = 7000
RUN = "/runs/-/games/player"


class Door:
    """The application, the tokens it has printed, and a browser without a cookie."""

    def __init__(self, root: Path) -> None:
        self.printed: list[str] = []
        self.pages: GuardedPages[PrintedAccess] = guarded_pages(root, port=PORT, on_use=self.printed.append)
        self.printed.append(self.pages.access.token)

    def browser(self, host: str = f"127.0.0.1:{PORT}") -> TestClient:
        return TestClient(self.pages, base_url=f"http://{host}", raise_server_exceptions=False)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made_run(tmp_path)
    opened = Door(tmp_path)
    yield opened
    opened.pages.close()


def test_a_token_opens_one_browser_and_the_next_one_is_printed(door: Door) -> None:
    first, second = door.browser(), door.browser()
    assert first.get("/").status_code == 401
    entered = first.get(f"/?token={door.printed[0]}")
    cookie = entered.headers["set-cookie"].lower()
    assert entered.status_code == 200 and "httponly" in cookie and "samesite=strict" in cookie
    assert door.printed[0] not in entered.text
    assert first.get(RUN).status_code == 200
    assert second.get(f"/?token={door.printed[0]}").status_code == 401 and second.get("/").status_code == 401
    assert second.get(f"/?token={door.printed[1]}").status_code == 200 and second.get("/").status_code == 200
    assert len(set(door.printed)) == 3


@pytest.mark.parametrize("token", ["", "x", "\u00e9", "\x00"])
def test_no_other_token_opens(door: Door, token: str) -> None:
    found = door.browser().get("/", params={"token": token})
    assert found.status_code == 401 and "set-cookie" not in found.headers


def test_a_foreign_host_gets_nothing_whatever_it_knows(door: Door) -> None:
    foreign = door.browser(f"example.org:{PORT}")
    assert foreign.get(f"/?token={door.printed[0]}").status_code == 421
    assert door.browser("127.0.0.1:7001").get(f"/?token={door.printed[0]}").status_code == 421
    assert door.browser(f"localhost:{PORT}").get(f"/?token={door.printed[0]}").status_code == 200


def test_the_door_leads_nowhere_else(door: Door) -> None:
    found = door.browser().get(f"http://127.0.0.1:{PORT}//example.org/x?token={door.printed[0]}&run=a")
    assert 'url=/example.org/x?run=a"' in found.text


def test_each_response_has_the_headers_and_none_opens_to_other_sites(door: Door) -> None:
    browser = door.browser()
    browser.get(f"/?token={door.printed[0]}")
    for path in ("/", RUN, f"{RUN}/rollouts.json", "/static/pages.css", "/nothing", f"{RUN}/train/99"):
        found = browser.get(path, headers={"origin": "http://evil.example"})
        assert {name: found.headers[name] for name in HEADERS} == dict(HEADERS), path
        assert not [name for name in found.headers if name.startswith("access-control-")], path
    assert "'unsafe" not in HEADERS["content-security-policy"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_reading_is_answered(door: Door, method: str) -> None:
    browser = door.browser()
    browser.get(f"/?token={door.printed[0]}")
    assert browser.request(method, RUN).status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/templates/run.html",
        "/runs/-/..%2f..%2fetc/passwd",
        "/runs/-/%2e%2e/player",
        "/runs/-/games/player%00",
        f"{RUN}/..%2f..%2f/1",
        f"{RUN}/%2e%2e/1",
        f"{RUN}/train/1%00",
    ],
)
def test_no_name_of_an_address_becomes_a_path(door: Door, path: str) -> None:
    browser = door.browser()
    browser.get(f"/?token={door.printed[0]}")
    assert browser.get(path).status_code == 404
