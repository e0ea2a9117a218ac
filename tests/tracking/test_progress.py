from __future__ import annotations

import itertools
import logging
import os
import pty
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import nbformat
import pytest
from nbclient import NotebookClient

from art.tracking import progress as progress_module
from art.tracking.progress import LoggedProgress, LogHandler, open_phases, open_progress, show_log
from starting import StartedProgram
from waiting import DEADLINE_S, eventually


def test_nobody_watches_a_pipe(capsys):
    with open_progress("train", 2) as progress:
        progress.advance(2, {})
    assert isinstance(progress, LoggedProgress) and not capsys.readouterr().err


def test_what_takes_long_is_said_where_nobody_watches(monkeypatch, caplog):
    monkeypatch.setattr(progress_module, "LINE_S", 0.01)

    def said(text):
        return any(text in line for line in caplog.messages)

    with caplog.at_level(logging.INFO, "art"), open_progress("evaluating", 1000) as progress:
        progress.advance(320, {})
        eventually(lambda: said("evaluating 320/1000, 0 s so far"))
    with caplog.at_level(logging.INFO, "art"), open_phases("agent") as begin_phase:
        begin_phase("starting the server")
        eventually(lambda: said("agent: starting the server, 0 s so far"))
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("progress of")])


class SteppedClock:
    """A clock that a wait moves on, and the event that ends the waiting after three minutes."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now >= 1180.0

    def set(self) -> None:
        pass


def test_no_wait_is_longer_than_ten_seconds_without_a_line(monkeypatch, caplog):
    clock = SteppedClock()
    monkeypatch.setattr(progress_module, "time", clock)
    event = SimpleNamespace(Event=lambda: clock, Thread=threading.Thread)
    monkeypatch.setattr(progress_module, "threading", event)
    with caplog.at_level(logging.INFO, "art"):
        LoggedProgress("training", None)
        eventually(lambda: clock.now >= 1180.0)
    said = [float(re.search(r"(\d+) s so far", line)[1]) for line in caplog.messages]
    assert len(said) > 10
    assert max(later - one for one, later in itertools.pairwise([0.0, *said, 180.0])) <= 10.0


def test_phases_are_lines_of_the_log_where_nobody_watches(caplog):
    caplog.set_level(logging.INFO, "art")
    with open_phases("agent") as begin_phase:
        for phase in ("starting the server", "serving step 0", "serving step 0"):
            begin_phase(phase)
    with open_phases("served already"):
        pass
    assert caplog.messages[:2] == ["agent: starting the server", "agent: serving step 0"]
    assert len(caplog.messages) == 3 and caplog.messages[2].startswith("agent: ready in 0.")


def test_a_start_that_fails_is_not_ready(caplog):
    caplog.set_level(logging.INFO, "art")
    with pytest.raises(LookupError), open_phases("agent") as begin_phase:
        begin_phase("starting")
        raise LookupError
    assert caplog.messages == ["agent: starting"]


@contextmanager
def no_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The logger `art` of a program that has set up nothing; pytest itself listens at the root."""
    art = logging.getLogger("art")
    level = art.level
    with monkeypatch.context() as here:
        here.setattr(logging.getLogger(), "handlers", [])
        here.setattr(art, "handlers", [])
        here.setattr(logging.getLogger("art_extensions"), "handlers", [])
        art.setLevel(logging.NOTSET)
        yield art
    art.setLevel(level)


def test_the_log_is_shown_on_stderr_once(monkeypatch, capsys):
    with no_logging(monkeypatch):
        show_log()
        show_log()
        logging.getLogger("art.client").info("a line")
        logging.getLogger("art.client").debug("a detail")
    assert capsys.readouterr().err[8:] == " art: a line\n"


def test_warnings_of_extensions_are_shown_alike(monkeypatch, capsys):
    with no_logging(monkeypatch):
        show_log()
        logging.getLogger("art_extensions.judge_checks").warning("a line")
        logging.getLogger("art_extensions.judge_checks").info("a detail")
    assert capsys.readouterr().err[8:] == " art: a line\n"


def test_a_level_of_the_program_stays(monkeypatch, capsys):
    with no_logging(monkeypatch) as art:
        art.setLevel(logging.WARNING)
        show_log()
        logging.getLogger("art.client").info("a line")
    assert not capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "art"])
def test_a_program_that_has_set_up_logging_keeps_its_own(monkeypatch, name):
    with no_logging(monkeypatch) as art:
        logging.getLogger(name).addHandler(logging.NullHandler())
        show_log()
        assert not any(isinstance(handler, LogHandler) for handler in art.handlers)
        assert art.level == logging.NOTSET


def test_logging_that_is_set_up_later_takes_over(monkeypatch, capsys):
    with no_logging(monkeypatch):
        show_log()
        logging.getLogger().addHandler(logging.NullHandler())
        logging.getLogger("art.client").warning("a line")
    assert not capsys.readouterr().err


TERMINAL = """
import logging
from art.tracking.progress import open_phases, open_progress, show_log
show_log()
with open_phases("agent") as begin_phase:
    for phase in ("starting the server", "serving step 0", "starting the server"):
        begin_phase(phase)
with open_progress("gather", 2) as outer, open_progress("judge", 2) as inner:
    outer.advance(1, {"reward": 0.5})
    logging.getLogger("art").info("a line [of] :art:")
    inner.advance(2, {})
    outer.advance(1, {"reward": 0.25})
print("the end")
"""


@pytest.mark.slow
def test_a_terminal_shows_bars_and_lines_above_them():
    leader, follower = pty.openpty()
    with StartedProgram([sys.executable, "-c", TERMINAL], stdout=follower, stderr=follower) as program:
        os.close(follower)
        shown = b""
        while not shown.endswith(b"the end\r\n"):
            try:
                shown += os.read(leader, 65536)
            except OSError:  # it has ended
                break
        assert program.wait(DEADLINE_S) == 0, shown.decode()
    os.close(leader)
    text = shown.decode()
    lines = text.splitlines()
    assert 0 < text.find("agent: starting the server") < text.rfind("agent: serving step 0")
    assert text.rfind("agent: starting the server") < text.rfind(
        "agent: serving step 0"
    )  # which is the present
    assert "0/?" not in text and any("art: agent: ready in" in line for line in lines)
    assert "a line [of] :art:" in text and "reward=0.25" in text
    # One block: both bars stay, in their last state, and each once.
    assert "2/2" in lines[-3] and "gather" in lines[-3] and "judge" in lines[-2] and "2/2" in lines[-2]


CELLS = (
    """
import asyncio
import art
from art.tracking.progress import open_phases, show_log
show_log()
async def rollout(reward):
    if reward == 3:
        raise LookupError("no such row")
    return art.Trajectory(reward=reward)
""",
    """
with open_phases("agent") as begin_phase:
    begin_phase("starting the server")
for step in range(3):
    groups = [art.TrajectoryGroup(rollout(reward) for reward in range(4)) for _ in range(2)]
    groups = await art.gather_trajectory_groups(groups, max_exceptions=2)
    print("step", step)
""",
    "_ = await art.gather_trajectories((rollout(1) for _ in range(4)), pbar_desc='evaluate')",
    "_ = await art.gather_trajectories((rollout(1) for _ in range(4)), pbar_desc=None)",
)


@pytest.mark.slow
def test_a_cell_of_a_notebook_has_one_output_without_widgets():
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    first, training, evaluation, silent = (cell.outputs for cell in notebook.cells)
    assert not first and not silent
    shown, *printed = training
    assert "".join(one.text for one in printed) == "step 0\nstep 1\nstep 2\n"
    assert list(shown.data) == ["text/plain"]
    lines = shown.data["text/plain"].splitlines()
    assert "art: agent: ready in 0.0 s" in lines[0] and "LookupError: no such row" in lines[1]
    counts = [line for line in lines if "2 of 8 rollouts failed and are left out" in line]
    assert len(counts) == 3 and lines[-1].startswith("gather ━") and " 8/8 0:" in lines[-1]
    assert lines[-1].endswith("reward=1  exceptions=2")
    (only,) = evaluation
    assert only.data["text/plain"].startswith("evaluate ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 4/4 0:0")
