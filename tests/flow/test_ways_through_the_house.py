"""How far a question and a training job go through the house: no further than what was reached."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1] / "promises" / "house"
sys.path.insert(0, str(HOUSE))
import ways  # noqa: E402 - the script lies with the other counters of the house

sys.path.remove(str(HOUSE))


@pytest.mark.slow
@pytest.mark.usefixtures("real_starts")
def test_the_ways_are_short() -> None:
    found = ways.measure()
    assert len(found.chat) <= ways.MOST_CHAT_FILES, found.chat
    assert len(found.to_the_job) <= ways.MOST_CALLS_TO_THE_JOB, found.to_the_job
    assert len(found.to_the_gradient) <= ways.MOST_CALLS_TO_THE_GRADIENT, found.to_the_gradient
    # The walk was seen from its first step to its last.
    assert found.chat[0].startswith("client/") and any(one.startswith("engine/builtin") for one in found.chat)
    assert found.to_the_job[0].endswith("train") and found.to_the_job[-1].startswith(
        "server/jobs/job_store.py"
    )
    assert found.to_the_gradient[0].endswith(ways.TAKES_THE_JOB)
    assert found.to_the_gradient[-1].startswith("training/step.py")


def test_contributing_says_the_same_figures() -> None:
    text = (HOUSE.parents[2] / "CONTRIBUTING.md").read_text()
    line = next(line for line in text.splitlines() if "chat completion passes" in line)
    assert [int(number) for number in re.findall(r"\b\d+\b", line)] == [
        ways.MOST_CHAT_FILES,
        ways.MOST_CALLS_TO_THE_JOB,
        ways.MOST_CALLS_TO_THE_GRADIENT,
    ]
