"""What ART keeps is for the user who runs it: prompts, keys and weights are not for others on the machine."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from art.process.files import (
    WorkerLog,
    create_private,
    make_private_folder,
    open_whole,
    write_first,
    write_whole,
)
from art.server.data_folder import DataFolderLock
from art.tracking.folders import lock_folder
from art.tracking.model_files import append_history_row

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows has no such permissions")


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """The most careless umask that a user may have."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The permissions of a folder and all in it."""
    found = {str(one.relative_to(folder.parent)): one for one in (folder, *folder.rglob("*"))}
    return {name: stat.S_IMODE(one.stat().st_mode) for name, one in found.items()}


def open_to_others(folder: Path) -> dict[str, str]:
    return {name: oct(mode) for name, mode in modes(folder).items() if mode & 0o077}


def test_all_ways_to_write_make_private_files(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_private_folder(home / "a" / "b")
    write_whole(home / "c" / "whole", "x")
    write_first(home / "d" / "first", "x")
    with open_whole(home / "e" / "text") as file:
        file.write("x")
    log = WorkerLog(home / "logs" / "worker.log", limit=4)
    log.write(b"longer than the limit")
    log.close()
    with lock_folder(home / "model"):
        append_history_row(home / "model" / "history.jsonl", {"step": 1})
    create_private(home / "db" / "ledger.sqlite")
    database = sqlite3.connect(home / "db" / "ledger.sqlite")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE samples (text)")
    assert len(modes(home / "db")) == 4, "the table, -wal and -shm"
    assert not open_to_others(home) and len(modes(home)) == 19
    database.close()


def test_a_file_for_others_is_asked_for(tmp_path: Path) -> None:
    write_whole(tmp_path / "site" / "index.html", "x", mode=0o644)
    assert set(modes(tmp_path / "site").values()) == {0o777, 0o644}


def test_what_an_earlier_release_left_open_is_closed_once(tmp_path: Path) -> None:
    model = tmp_path / "games" / "models" / "player"
    server = tmp_path / "server"
    for folder in (model, server):
        folder.mkdir(parents=True, mode=0o755)
    for file in (model / ".lock", model / "history.jsonl", server / "ledger.sqlite"):
        file.touch(0o644)
    with lock_folder(model):
        pass
    assert modes(model)["player"] == 0o700 and modes(model)["player/.lock"] == 0o600
    model.chmod(0o755)
    with lock_folder(model):
        pass
    assert modes(model)["player"] == 0o755, "somebody's choice, which stays"

    DataFolderLock(server).release()
    assert not open_to_others(server) and modes(model)["player"] == 0o700
    model.chmod(0o750)
    (server / "ledger.sqlite").chmod(0o660)
    DataFolderLock(server).release()
    assert modes(model)["player"] == 0o750 and modes(server)["server/ledger.sqlite"] == 0o660
