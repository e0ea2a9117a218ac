from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from art.errors import ConfigurationError
from art.rendering.registry import is_on_hub
from waiting import DEADLINE_S


class Hub(BaseHTTPRequestHandler):
    """Has `org/known`, is in trouble about `org/slow`, wants consent for `org/gated`, and has no more."""

    def do_GET(self) -> None:
        name = self.path.removeprefix("/api/models/")
        status, code = {"org/known": (200, ""), "org/slow": (500, ""), "org/gated": (403, "GatedRepo")}.get(
            name, (404, "RepoNotFound")
        )
        body = b'{"id": "org/known", "siblings": []}'
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(DEADLINE_S)


@pytest.fixture
def nowhere() -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.server_close()
    return f"http://127.0.0.1:{server.server_port}"


def cached(folder: Path, name: str) -> Path:
    repo = folder / f"models--{name.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc")
    (repo / "snapshots" / "abc").mkdir(parents=True)
    (repo / "snapshots" / "abc" / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", ["org/known", "org/slow", "org/gated"])
def test_what_may_be_loaded_is_left_to_loading(hub, tmp_path, name):
    assert is_on_hub(name, endpoint=hub, cache=tmp_path)


def test_a_name_that_the_hub_has_not_is_refused(hub, tmp_path):
    with pytest.raises(ConfigurationError, match=r"'org/typo' is no folder here.*has no such model"):
        is_on_hub("org/typo", endpoint=hub, cache=tmp_path)


def test_without_a_network_the_reason_is_the_network(nowhere, tmp_path):
    with pytest.raises(ConfigurationError, match=r"'org/known' .*the hub cannot be reached .*art/nano-games"):
        is_on_hub("org/known", endpoint=nowhere, cache=tmp_path)


@pytest.mark.parametrize("address", ["hub", "nowhere"])
def test_what_the_cache_has_needs_no_hub(address, request, tmp_path):
    endpoint = request.getfixturevalue(address)
    assert not is_on_hub("org/private", endpoint=endpoint, cache=cached(tmp_path, "org/private"))


def test_a_folder_that_is_not_there_is_refused_at_once(nowhere, tmp_path):
    with pytest.raises(ConfigurationError, match="is no folder here, and no name on the hub"):
        is_on_hub(str(tmp_path / "my" / "lora"), endpoint=nowhere)
