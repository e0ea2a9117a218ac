"""No key, no half of one and no full disk ever opens the server to everybody."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
import stat
import threading
from pathlib import Path

import pytest
from live import KEY, Live

from art.errors import ConfigurationError, DiskError
from art.process.files import write_first
from art.server.settings import KEY_VARIABLE, ServerSettings, resolve_key
from art.server.tenants import KeyCheck

EMPTY = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer "},
    {"authorization": "Bearer  "},
    {"x-api-key": ""},
    {"x-api-key": " "},
    {"authorization": "Bearer ", "x-api-key": ""},
]
ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/r/one/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/samples/s1"),
    ("POST", "/art/rollouts"),
    ("GET", "/openapi.json"),
    ("GET", "/no/such/route"),
]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def kept_key(folder: Path) -> str:
    return resolve_key(ServerSettings(data_dir=folder))


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"art-x", b"art-abc def ghi jkl", b"art-\xff\xfe\xfd\xfc\xfb"]
)
def test_a_key_file_that_was_cut_is_refused_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "server" / "key"
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        kept_key(tmp_path)
    for named in (str(file), "Delete the file for a new key", KEY_VARIABLE):
        assert named in str(refused.value)
    assert file.read_bytes() == content
    file.unlink()
    assert len(kept_key(tmp_path)) > 30, "the remedy works"


@pytest.mark.parametrize("key", ["", "short", "with space in it", "schlüssel-lang", "line\nbreak-and-more"])
def test_a_weak_key_makes_no_check(key: str) -> None:
    with pytest.raises(ConfigurationError, match="at least 8") as refused:
        KeyCheck(key)
    assert not key or key not in str(refused.value)


def ask(url: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Header values as they are, with spaces at their ends: other clients refuse to send them."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, body=b"{}", headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_an_empty_credential_is_none(live: Live, method: str, path: str) -> None:
    for headers in EMPTY:
        status, said = await asyncio.to_thread(ask, live.url, method, path, headers)
        assert status == 401 and "no key was sent" in said, headers
    right = {"authorization": "Bearer ", "x-api-key": KEY}
    assert (await asyncio.to_thread(ask, live.url, method, path, right))[0] != 401


async def test_health_tells_a_stranger_nothing(live: Live) -> None:
    for headers in EMPTY:
        _, said = await asyncio.to_thread(ask, live.url, "GET", "/health", headers)
        assert json.loads(said).keys() == {"status", "version"}


async def test_the_bare_address_greets_everybody_with_the_same_words(live: Live) -> None:
    right = {"authorization": f"Bearer {KEY}"}
    told = {await asyncio.to_thread(ask, live.url, "GET", "/", headers) for headers in (*EMPTY, right)}
    ((status, said),) = told
    assert status == 200 and "/v1" in said and "player" not in said and KEY not in said
    assert (await asyncio.to_thread(ask, live.url, "POST", "/", right))[0] == 405


def test_of_servers_that_start_at_once_each_has_the_same_key(tmp_path: Path) -> None:
    begin, keys = threading.Barrier(8), list[str]()

    def start() -> None:
        begin.wait(timeout=240)
        keys.append(kept_key(tmp_path))

    starting = [threading.Thread(target=start) for _ in range(8)]
    for one in starting:
        one.start()
    for one in starting:
        one.join(timeout=240)
    assert len(keys) == 8 and len(set(keys)) == 1
    file = tmp_path / "server" / "key"
    assert [left.name for left in file.parent.iterdir()] == ["key"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_without_links_a_file_is_still_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "links are not known here")

    monkeypatch.setattr(os, "link", refuse)
    assert write_first(tmp_path / "one", "first") and not write_first(tmp_path / "one", "second")
    assert (tmp_path / "one").read_text() == "first" and len(list(tmp_path.iterdir())) == 1


def test_a_disk_that_is_full_at_the_first_start_leaves_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DiskError, match=r"the disk is full: .*bytes free"):
            kept_key(tmp_path)
    assert list((tmp_path / "server").iterdir()) == []
    assert len(kept_key(tmp_path)) > 30, "the next start makes one"


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["64k"], indirect=True)
def test_a_real_full_disk_at_the_first_start(small_disk: Path) -> None:
    (small_disk / "server").mkdir()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(b"x" * 1024)
    with pytest.raises(DiskError, match=r"the disk is full: .*bytes free"):
        kept_key(small_disk)
    assert list((small_disk / "server").iterdir()) == []
    filler.unlink()
    assert len(kept_key(small_disk)) > 30
