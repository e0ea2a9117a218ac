"""A file's lock has one holder, in this process or in another, and none once that is gone; a folder for
temporary files goes with its process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from art.process.files import ScratchFolder, take_lock
from starting import StartedProgram
from waiting import DEADLINE_S

HOLDER = """
import sys
from pathlib import Path
from art.process.files import take_lock
print(take_lock(Path(sys.argv[1])) is not None, flush=True)
sys.stdin.read()
"""
KEEPER = """
import sys
from pathlib import Path
from art.process.files import ScratchFolder
print(ScratchFolder("art-test", Path(sys.argv[1])).path, flush=True)
sys.stdin.read()
"""


def test_one_holder_until_it_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = take_lock(path)
    assert held is not None and path.stat().st_mode & 0o777 == 0o600
    assert take_lock(path) is None and take_lock(path, patience=0.05) is None
    os.close(held)
    again = take_lock(path)
    assert again is not None
    os.close(again)


@pytest.mark.slow
def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with StartedProgram(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "True\n"
        assert take_lock(path) is None
        holder.kill()
        held = take_lock(path, patience=DEADLINE_S)
    assert held is not None
    os.close(held)


def make_old(folder: Path) -> None:
    os.utime(folder / ".holder", (0, 0))


@pytest.mark.slow
def test_a_folder_of_a_killed_process_goes_when_the_next_is_made(tmp_path: Path) -> None:
    foreign = tmp_path / "art-test-of-somebody-else"
    foreign.mkdir()
    with StartedProgram(
        [sys.executable, "-c", KEEPER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as keeper:
        assert keeper.stdout is not None
        kept = Path(keeper.stdout.readline().strip())
        (kept / "worker.log").write_text("its last words")
        make_old(kept)
        second = ScratchFolder("art-test", tmp_path)  # the first one's process lives
        assert kept.is_dir() and second.path.stat().st_mode & 0o777 == 0o700
        keeper.kill()
    third = ScratchFolder("art-test", tmp_path)
    assert not kept.exists() and second.path.is_dir() and foreign.is_dir()
    second.remove()
    second.remove()
    assert sorted(tmp_path.iterdir()) == sorted([foreign, third.path])
    third.remove()
