"""The bucket's server dies, refuses, or answers nonsense in the middle."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from model_folders import QUICK, credentials, write_step

from art.errors import ForbiddenBucketCreationError, StorageError
from art_extensions.buckets.bucket_pull import Wanted, commit_here, pull_model
from art_extensions.buckets.bucket_push import push_model
from art_extensions.buckets.store import Store
from waiting import DEADLINE_S

pytestmark = pytest.mark.slow

URL = "s3://backups/games/models/agent"


class Faulty(http.server.ThreadingHTTPServer):
    """Passes requests on to a real server, until it has passed `left` of them: then it is gone, like a
    machine without power. `forbid` answers 403 to the making of buckets.
    """

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Pass)
        self.upstream = upstream
        self.left: int | None = None
        self.forbid = False
        self.passed: list[str] = []
        self.lock = threading.Lock()
        threading.Thread(target=lambda: self.serve_forever(0.02), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Pass(http.server.BaseHTTPRequestHandler):
    server: Faulty
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with self.server.lock:
            dead = self.server.left is not None and self.server.left <= 0
            if self.server.left is not None:
                self.server.left -= 1
            self.server.passed.append(f"{self.command} {self.path}")
        if dead:
            self.connection.close()
            self.close_connection = True
            return
        if self.server.forbid and self.command == "PUT" and self.path.strip("/").count("/") == 0:
            self._send(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", {})
            return
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("content-length", "connection")}
        with httpx.Client(trust_env=False, timeout=DEADLINE_S) as client:
            reply = client.request(
                self.command, self.server.upstream + self.path, headers=headers, content=body
            )
        hop = ("content-length", "transfer-encoding", "connection", "content-encoding")
        kept = {k: v for k, v in reply.headers.items() if k.lower() not in hop}
        length = reply.headers.get("content-length") if self.command == "HEAD" else None
        self._send(reply.status_code, reply.content, kept, length)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

    def _send(self, status: int, body: bytes, headers: dict[str, str], length: str | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def faulty(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    server = Faulty(s3)
    credentials(monkeypatch, server.url)
    yield server
    server.shutdown()
    server.server_close()


def store() -> Store:
    return Store(URL, limits=QUICK)


def test_the_server_dies_at_any_moment_of_a_push(faulty: Faulty, model: Path, tmp_path: Path) -> None:
    """Whatever got through, a pull afterwards gives whole steps or none."""
    write_step(model, 2)
    whole_push = 0
    push_model(model, store())
    whole_push = len(faulty.passed)
    httpx.post(f"{faulty.upstream}/moto-api/reset", trust_env=False, timeout=DEADLINE_S)
    seen = set()
    for alive in range(2, whole_push, max(1, whole_push // 7)):
        faulty.left = alive
        with pytest.raises(StorageError, match="could not"):
            push_model(model, store())
        faulty.left = None
        other = tmp_path / f"after-{alive}" / "games" / "models" / "agent"
        if store().sizes():
            report = pull_model(store(), other, Wanted(side_files=False), commit=commit_here(other))
            seen.add(tuple(report.steps))
            for step in report.steps:
                weights = other / "checkpoints" / f"{step:04d}" / "adapter_model.safetensors"
                assert weights.read_bytes() == f"weights of {step}".encode() * 1000
        httpx.post(f"{faulty.upstream}/moto-api/reset", trust_env=False, timeout=DEADLINE_S)
    assert len(seen) > 1  # it did die between steps
    assert push_model(model, store()).steps == [0, 1, 2]


def test_the_server_dies_at_any_moment_of_a_pull(faulty: Faulty, model: Path, tmp_path: Path) -> None:
    push_model(model, store())
    other = tmp_path / "other" / "games" / "models" / "agent"
    for alive in (0, 2, 4, 7, 9):
        faulty.left = alive
        with pytest.raises(StorageError, match="could not"):
            pull_model(store(), other, Wanted(), commit=commit_here(other))
        committed = other / "checkpoints"
        assert not committed.is_dir() or sorted(path.name for path in committed.iterdir()) == ["0000", "0001"]
    faulty.left = None
    pull_model(store(), other, Wanted(), commit=commit_here(other))
    assert (other / "checkpoints" / "0001" / "manifest.json").is_file()


def test_a_bucket_that_may_not_be_made_is_an_error_of_its_own(faulty: Faulty, model: Path) -> None:
    faulty.forbid = True
    with pytest.raises(ForbiddenBucketCreationError, match="'backups' does not exist") as refused:
        push_model(model, store())
    assert refused.value.status_code == 403 and "backups" in refused.value.detail


def test_nothing_answers(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"could not .* in 2 attempts"):
        push_model(model, store())
