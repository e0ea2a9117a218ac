"""A worker that answers but gets nowhere is found; one that has nothing to do is left alone."""

from __future__ import annotations

import pytest

from art.errors import WorkerError, WorkerStalledError
from art.server.workers.health_board import StallWatch


def test_requests_without_steps_are_a_stall() -> None:
    pulse = StallWatch("'engine' (pid 7)", deadline=0.0)
    pulse.check({"running": 3, "steps": 10})
    with pytest.raises(WorkerStalledError, match=r"'engine'.* 3 running requests and made no step for 0 s"):
        pulse.check({"running": 3, "steps": 10})


def test_steps_are_a_pulse_and_idleness_needs_none() -> None:
    pulse = StallWatch("engine", deadline=0.0)
    for steps in (1, 2, 3):
        pulse.check({"running": 1, "steps": steps})
    for _ in range(3):
        pulse.check({"running": 0, "steps": 3})


def test_a_worker_without_counters_is_never_suspected() -> None:
    pulse = StallWatch("trainer", deadline=0.0)
    for _ in range(3):
        pulse.check({"busy": True})
        pulse.check({"running": 1})


def test_a_worker_that_says_it_is_broken_is_believed() -> None:
    with pytest.raises(WorkerError, match="out of memory"):
        StallWatch("engine", deadline=60.0).check({"error": "out of memory"})
