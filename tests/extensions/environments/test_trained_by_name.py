"""A dataset of reasoning-gym is trained on by its name, as the bench does it: the light client, where the
library is, and a server elsewhere.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from bench.learning.environments import JOBS, MOST_SECONDS, learn, python_of

MISSING = not python_of(JOBS["letter-counting"]).exists() and not os.environ.get("ART_TEST_EVERYTHING")


@pytest.mark.slow
@pytest.mark.skipif(MISSING, reason="no .venv-environments: `make .venv-environments/.installed`")
async def test_a_dataset_of_reasoning_gym_is_learned_by_its_name(tmp_path: Path) -> None:
    job = replace(JOBS["letter-counting"], steps=3, groups_per_step=8, evaluations=60)
    told = await learn("letter-counting", job, tmp_path, MOST_SECONDS)
    assert told is not None
    assert [row["step"] for row in told["steps"]] == [1, 2, 3]
    assert all(0 <= row["reward"] <= 1 for row in told["steps"])
    for side in (told["before"], told["after"]):
        low, high = side["interval"]
        assert side["rollouts"] == 60 and low <= side["reward"] <= high
    # About 0.2 before; digits that are frequent are found first.
    error = sum(told[side]["score"] * (1 - told[side]["score"]) / 60 for side in ("before", "after")) ** 0.5
    assert told["after"]["score"] > told["before"]["score"] + 0.1 - 3 * error
    assert told["gain"]["count"] == 60
