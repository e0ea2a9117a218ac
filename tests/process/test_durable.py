"""Files that are whole at any moment."""

from __future__ import annotations

import stat
import sys
import threading
from pathlib import Path

import pytest

from art.process.files import write_flushed, write_whole


@pytest.mark.slow
@pytest.mark.parametrize("durable", [False, True])
def test_a_reader_meets_the_old_file_or_the_new_one(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "state.json"
    old, new = "a" * 300_000, "b" * 300_000
    write_whole(path, old, durable=durable)
    met, done = set[str](), threading.Event()

    def read() -> None:
        while not done.is_set():
            met.add(path.read_text(encoding="utf-8"))

    reader = threading.Thread(target=read)
    reader.start()
    for text in [new, old] * 20:
        write_whole(path, text, durable=durable)
    done.set()
    reader.join(timeout=240)
    assert met and met <= {old, new}
    assert [file.name for file in tmp_path.iterdir()] == ["state.json"]


def test_folders_are_made_and_texts_are_utf_8(tmp_path: Path) -> None:
    write_whole(tmp_path / "a" / "b" / "words.txt", "naïve\n")
    assert (tmp_path / "a" / "b" / "words.txt").read_bytes() == b"na\xc3\xafve\n"


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["words.txt"]


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_a_private_file_is_never_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("readable")
    path.chmod(0o644)
    write_whole(path, "private", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_there_is_not_written_through(tmp_path: Path) -> None:
    """It may be a link to another checkpoint's."""
    path = tmp_path / "job.json"
    write_flushed(path, "first")
    with pytest.raises(FileExistsError):
        write_flushed(path, "second")
    assert path.read_text() == "first"
