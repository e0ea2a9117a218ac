"""Threads that need a library at the same moment get it, whichever part of it each asks for first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RACE = """
import sys, threading
from art.engine.base_models import resolve_base
from art.engine.constraints import read_vocabulary
from art.process.imports import import_lock
from art.rendering.confined_template import prepare

sys.setswitchinterval(1e-5)
folder = str(resolve_base("art/nano-games").source)
failed, start = [], threading.Barrier(3)

def render():
    with import_lock:
        from art.rendering.registry import create_chat_renderer
    create_chat_renderer(folder)

def run(work):
    start.wait()
    try:
        work()
    except BaseException as error:
        failed.append(f"{work}: {error!r}")

works = [render, lambda: read_vocabulary(folder), lambda: prepare(b"")]
threads = [threading.Thread(target=run, args=(work,)) for work in works]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*failed, sep="\\n")
"""


@pytest.mark.slow
def test_threads_that_import_a_library_at_once_all_get_it(tmp_path: Path) -> None:
    program = tmp_path / "race.py"
    program.write_text(RACE)
    # Without the lock nine of ten such processes fail; two leave no doubt.
    racers = [
        subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [racer.communicate(timeout=120) for racer in racers]
    ended = [(racer.returncode, out) for racer, (out, _) in zip(racers, printed, strict=True)]
    assert ended == [(0, "\n")] * 2
