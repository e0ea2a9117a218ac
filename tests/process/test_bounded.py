"""Work for strangers: a helper that does not read, and one that does not answer, are given up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from art.process.bounded import Bounded, LimitExceededError, WorkLimits

LIMITS = WorkLimits(cpu_s=5, wall_s=0.2, memory_bytes=1 << 28, output_bytes=1 << 20)
HELPER = """
def prepare(setup):
    return lambda task: setup + task[:4]
"""


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bounded]:
    (tmp_path / "echoing_helper.py").write_text(HELPER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr("art.process.bounded._GRACE_S", 0.3)
    made = Bounded("echoing_helper", lambda: b"said ", LIMITS)
    yield made
    made.close()


def done(helper: Bounded, task: bytes) -> bytes:
    """The answer, asked for until it comes: on a busy machine tenths of a second are little."""
    end = time.monotonic() + 240
    while True:
        try:
            return helper.ask(task)
        except LimitExceededError:
            assert time.monotonic() < end


@pytest.mark.slow
@pytest.mark.parametrize("task", [b"short", b"x" * (4 << 20)], ids=["unanswered", "unread"])
def test_a_frozen_helper_is_ended_and_the_next_task_is_done(helper: Bounded, task: bytes) -> None:
    assert done(helper, b"once more") == b"said once"
    assert helper.pid is not None
    frozen = helper.pid
    os.kill(frozen, signal.SIGSTOP)
    with pytest.raises(LimitExceededError):
        helper.ask(task)
    assert helper.pid != frozen
    with pytest.raises(ProcessLookupError):
        os.kill(frozen, 0)
    assert done(helper, b"again") == b"said agai"
