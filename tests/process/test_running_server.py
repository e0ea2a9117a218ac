from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from art.process.files import take_lock
from art.process.running_server import (
    RunningServer,
    announce_server,
    digest_of_options,
    find_server,
    is_in_use,
    withdraw_server,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there is no lock by which to tell")
SERVER = RunningServer(pid=os.getpid(), host="0.0.0.0", port=8000, key="secret-key", options="d")


def test_a_server_is_found_while_it_holds_the_folder(tmp_path: Path) -> None:
    assert find_server(tmp_path) is None and not is_in_use(tmp_path)
    lock = take_lock(tmp_path / "lock")
    assert lock is not None
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    assert find_server(tmp_path) is None and is_in_use(tmp_path)  # it is starting
    announce_server(tmp_path, SERVER)
    assert find_server(tmp_path) == SERVER and SERVER.url == "http://127.0.0.1:8000"
    assert (tmp_path / "address.json").stat().st_mode & 0o777 == 0o600 and "secret" not in repr(SERVER)

    # What an earlier server left is not taken for the one that holds the folder now.
    announce_server(tmp_path, replace(SERVER, pid=1))
    assert find_server(tmp_path) is None
    announce_server(tmp_path, SERVER)
    os.close(lock)
    assert find_server(tmp_path) is None
    withdraw_server(tmp_path)
    withdraw_server(tmp_path)
    assert not (tmp_path / "address.json").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pid": 1, "more": 2}', "\x00"])
def test_a_damaged_address_is_none(tmp_path: Path, content: str) -> None:
    lock = take_lock(tmp_path / "lock")
    (tmp_path / "address.json").write_text(content)
    assert find_server(tmp_path) is None
    os.close(lock)  # type: ignore[arg-type]


def test_options_are_the_same_however_numbers_are_written_and_wherever_the_server_is() -> None:
    one = {"engine": {"options": {"threads": 1, "eager": True}}, "port": 1, "key": "a"}
    two = {"engine": {"options": {"eager": True, "threads": 1.0}}, "port": 2, "data_dir": Path("b")}
    other = {"engine": {"options": {"threads": 1, "eager": 1}}}
    assert digest_of_options(one) == digest_of_options(two) != digest_of_options(other)
