"""A tracker that is slow, down or wrong: the program goes on, and is told once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.errors import ConfigurationError
from art.tracking.sinks.registry import Delivery, tables_of
from art.tracking.sinks.sink import ReportedRun, sample_rows

RUN = ReportedRun(entity=None, project="p", name="n", run_id=None, folder=Path("n"))


class Tracker:
    """A tracker that keeps what it is told; `answers` off: it hangs, `fails` on: it raises."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.answers, self.begun = threading.Event(), threading.Event()
        self.answers.set()
        self.fails = False

    def open(self, run: ReportedRun, config: Any) -> None:
        self.told.append(("open", run.name, dict(config)))

    def config(self, values: Any) -> None:
        self.told.append(("config", dict(values)))

    def log(self, step: int, row: Any) -> None:
        self.begun.set()
        assert self.answers.wait(60)
        if self.fails:
            raise ConnectionError("refused")
        self.told.append(step)

    def close(self) -> None:
        self.told.append("closed")


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    made = Tracker()
    yield made
    made.answers.set()


def delivery(tracker: Tracker, **options: Any) -> Delivery:
    return Delivery("made", lambda: tracker, RUN, **options)


def row(step: int) -> Any:
    return methodcaller("log", step, {})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [found.message for found in caplog.records if found.levelno >= logging.WARNING]


def test_a_row_has_arrived_when_the_call_returns(tracker):
    sent = delivery(tracker)
    sent.configure({"a": 1})
    sent.put(row(1), 60)
    assert tracker.told[0] == ("open", "n", {"a": 1}) and tracker.told[-1] == 1
    sent.close(time.monotonic() + 60)
    assert tracker.told[-1] == "closed"
    sent.put(row(2), 60)  # after the end: nothing is sent, nothing hangs
    assert tracker.told[-1] == "closed"


def test_a_tracker_that_raises_is_told_once_and_tried_again(tracker, caplog):
    sent = delivery(tracker)
    tracker.fails = True
    for step in (1, 2):
        sent.put(row(step), 60)
    tracker.fails = False
    sent.put(row(3), 60)
    assert tracker.told[-1] == 3 and sent.failed == 2
    assert ["failed, the run goes on" in text and "refused" in text for text in warnings(caplog)] == [True]


def test_a_tracker_that_hangs_holds_nothing_up_and_gets_its_rows_later(tracker, caplog):
    sent = delivery(tracker)
    tracker.answers.clear()
    for step in range(50):
        sent.put(row(step), 0.01)
    assert ["takes over" in text for text in warnings(caplog)] == [True]
    tracker.answers.set()
    sent.close(time.monotonic() + 60)
    assert tracker.told[1:] == [*range(50), "closed"]


def test_a_tracker_that_hangs_and_then_fails_is_one_warning(tracker, caplog):
    caplog.set_level(logging.INFO)
    sent = delivery(tracker)
    tracker.answers.clear()
    tracker.fails = True
    sent.put(row(0), 0.01)
    tracker.answers.set()
    sent.close(time.monotonic() + 60)
    (warning,) = warnings(caplog)
    assert "takes over" in warning and sent.failed == 1
    (told,) = [found.message for found in caplog.records if "refused" in found.message]
    assert "failed, the run goes on" in told


def test_the_queue_is_bounded_and_the_newest_rows_stay(tracker, caplog):
    sent = delivery(tracker, most=3)
    tracker.answers.clear()
    sent.put(row(0), 0.01)
    assert tracker.begun.wait(60)  # it holds the first row
    for step in range(1, 10):
        sent.put(row(step), 0.01)
    tracker.answers.set()
    sent.close(time.monotonic() + 60)
    assert tracker.told[1:] == [0, 7, 8, 9, "closed"] and sent.failed == 6
    assert sum("the oldest are not sent" in text for text in warnings(caplog)) == 1


def test_the_end_of_a_program_does_not_wait_for_a_tracker_that_hangs(tracker, caplog):
    sent = delivery(tracker)
    tracker.answers.clear()
    sent.put(row(0), 0.01)
    sent.close(time.monotonic() + 0.01)
    assert "1 rows of 'n' had not arrived when the program ended" in warnings(caplog)[-1]


def test_a_shown_conversation_has_what_its_turns_earned_and_why():
    said = {"role": "assistant", "content": "left"}
    turns = [
        Choice.model_validate({"index": 0, "finish_reason": "stop", "message": said, "sample_id": f"s{n}"})
        for n in range(3)
    ]
    one = art.Trajectory(messages_and_choices=[{"role": "user", "content": "Go."}, *turns])
    one.reward_turn(1, 0.5, reason="It moved.")
    one.reward_turn(2, 0.25)
    one.reward_turn(3, -1, reason="w" * 5_000)
    text = sample_rows([art.TrajectoryGroup([one])], 1)[0].text.split("\n\n")
    assert text[1:3] == ["assistant (reward 0.5: It moved.): left", "assistant (reward 0.25): left"]
    assert text[3].startswith("assistant (reward -1: www") and len(text[3]) < 1_100


async def test_how_many_trajectories_are_shown(tmp_path, monkeypatch):
    groups = [art.TrajectoryGroup([art.Trajectory(reward=r) for r in (0.0, 1.0)]) for _ in range(2)]
    shown = [(one.group, one.place, one.reward) for one in sample_rows(groups, 3)]
    assert shown == [(0, 0, 0.0), (1, 0, 0.0), (0, 1, 1.0)]
    assert [len(rows) for rows in tables_of(groups, "val").locally.values()] == [4]
    assert not tables_of(groups, "val").everywhere  # what leaves this machine is asked for
    monkeypatch.setenv("ART_TRACKED_TRAJECTORIES", "0")
    assert not tables_of(groups, "val").locally
    monkeypatch.setenv("ART_TRACKED_TRAJECTORIES", "many")
    model = art.Model(name="m", project="p", base_path=str(tmp_path), report_metrics=[])
    with pytest.raises(ConfigurationError, match="ART_TRACKED_TRAJECTORIES is 'many'"):
        await model.log(groups, split="val", step=0)
    monkeypatch.setenv("ART_TRACKED_TRAJECTORIES", "0")
    monkeypatch.setenv("ART_TRACKED_CHECKPOINTS", "all")
    with pytest.raises(ConfigurationError, match="ART_TRACKED_CHECKPOINTS is 'all'"):
        await model.log(groups, split="val", step=0)
    assert not (model._folder() / "history.jsonl").exists()
