"""What somebody else wrote is read within limits, or refused by one error."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from art.errors import UnreadableFileError
from art.process import foreign_files
from art.process.foreign_files import (
    MOST_DEPTH,
    ask_foreign_blocking,
    open_foreign,
    parse_json,
    read_lines,
)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_a_value_may_nest_so_deep_and_no_deeper() -> None:
    assert parse_json(nested(MOST_DEPTH))
    for depth in (MOST_DEPTH + 2, 100_000):
        with pytest.raises(UnreadableFileError, match=f"deeper than {MOST_DEPTH} levels"):
            parse_json(nested(depth))


def test_a_line_that_is_too_long_is_skipped_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_files, "MOST_BYTES", 10)
    monkeypatch.setattr(foreign_files, "_SKIPPED", 7)
    file = tmp_path / "log"
    file.write_bytes(b"short\n" + b"x" * 100 + b"\n1234567890\nend")
    with open_foreign(file) as opened:
        assert list(read_lines(opened)) == [(1, b"short\n"), (2, None), (3, None), (4, b"end")]


@pytest.mark.skipif(os.name != "posix", reason="it makes a pipe")
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link"):
        with pytest.raises(UnreadableFileError, match="is no plain file"):
            open_foreign(tmp_path / name)


def test_a_packed_file_is_unpacked_as_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    with open_foreign(tmp_path / "log.gz") as file:
        assert file.readlines() == [b"one\n", b"two\n"]


@pytest.mark.parametrize("damage", ["no gzip", "cut", "changed"])
def test_a_damaged_packed_file_is_an_error_of_ours(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(os.urandom(1000))
    content = {"no gzip": b"{}", "cut": whole[:500], "changed": whole[:50] + b"\0" * 50 + whole[100:]}[damage]
    (tmp_path / "log.gz").write_bytes(content)
    with open_foreign(tmp_path / "log.gz") as file, pytest.raises(UnreadableFileError, match="whole gzip"):
        file.read()


def test_a_file_that_unpacks_to_a_thousandfold_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_files, "_SMALL", 1 << 20)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b" " * (8 << 20)))
    read = 0
    with open_foreign(tmp_path / "bomb.gz") as file, pytest.raises(UnreadableFileError, match="200 times"):
        while piece := file.read1(1 << 16):
            read += len(piece)
    assert read < 4 << 20


def served(parts: list[bytes], headers: dict[str, str], wait_s: float = 0.0) -> httpx.MockTransport:
    def pieces() -> Iterator[bytes]:
        for part in parts:
            time.sleep(wait_s)
            yield part

    return httpx.MockTransport(lambda request: httpx.Response(200, headers=headers, content=pieces()))


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        (served([b"x" * 60, b"x" * 60], {}), "longer than 100 bytes"),
        (served([b"x"], {"content-encoding": "gzip"}), "packed [(]gzip[)]"),
        (served([b"x"] * 99, {}, wait_s=0.02), "did not end within 0.1 s"),
    ],
)
def test_a_reply_is_read_within_limits(server: httpx.MockTransport, problem: str) -> None:
    with httpx.Client(transport=server) as client, pytest.raises(UnreadableFileError, match=problem):
        ask_foreign_blocking(client, "GET", "http://it/schema", most_bytes=100, deadline_s=0.1)


def test_a_reply_within_its_limits_is_returned_whole() -> None:
    with httpx.Client(transport=served([b"x" * 50, b"y" * 50], {})) as client:
        reply = ask_foreign_blocking(client, "POST", "http://it/", most_bytes=100, deadline_s=60.0, body={})
    assert reply.content == b"x" * 50 + b"y" * 50
