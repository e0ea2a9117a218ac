"""Each committed step has one row, wherever the process was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from interrupted import DEADLY, run

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("interrupted.py")


def killed(folder: Path, point: str, *more: str) -> list[dict[str, Any]]:
    """The rows that a process leaves that is killed there."""
    done = subprocess.run([sys.executable, str(PROGRAM), str(folder), point, *more], timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(json.loads((folder / "jobs.json").read_text())) == DEADLY, "the step was committed"
    return rows(folder)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "steps.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("point", ["committed", "logged"])
async def test_a_committed_step_without_a_row_gets_it(tmp_path: Path, point: str) -> None:
    assert [row["step"] for row in killed(tmp_path, point)] == [1]

    told = await run(tmp_path, "never")
    assert told[0].startswith(
        "step 2 was committed when the run was interrupted: reward 0.500, turns 1.00; 12 of 4"
    )
    first, second, third = rows(tmp_path)
    assert [row["step"] for row in (first, second, third)] == [1, 2, 3]
    assert (first["recovered"], second["recovered"], third["recovered"]) == (False, True, False)
    assert second["trained"] == 12 and second["reward"] == 0.5 and second["figures"] == {"turns": 1.0}
    assert second["seconds_training"] is None and first["seconds_training"] is not None
    assert len(json.loads((tmp_path / "jobs.json").read_text())) == 3, "nothing was trained twice"
    history = [json.loads(line) for line in (tmp_path / "p/models/n/history.jsonl").read_text().splitlines()]
    logged = [row["step"] for row in history if "data/sheet/trained_rollouts" in row]
    assert logged == [1, 2, 3], "the model's own log has each step once, too"

    assert not await run(tmp_path, "never") and len(rows(tmp_path)) == 3


async def test_a_backend_that_keeps_no_jobs_is_asked_for_its_step(tmp_path: Path) -> None:
    killed(tmp_path, "committed", "forgets")
    await run(tmp_path, "never", answers=False)
    first, second, third = rows(tmp_path)
    assert [row["step"] for row in (first, second, third)] == [1, 2, 3]
    assert second["recovered"] and second["trained"] is None and third["trained"] == 13


async def test_a_step_that_was_not_committed_is_made_again(tmp_path: Path) -> None:
    killed(tmp_path, "committed")
    jobs = json.loads((tmp_path / "jobs.json").read_text())
    (tmp_path / "jobs.json").write_text(json.dumps({name: step for name, step in jobs.items() if step == 1}))
    told = await run(tmp_path, "never")
    assert not any("interrupted" in line for line in told)
    assert [(row["step"], row["recovered"]) for row in rows(tmp_path)] == [(1, False), (2, False), (3, False)]
