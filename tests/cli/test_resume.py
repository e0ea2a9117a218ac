"""A chat trains nothing; `art resume` finishes what a stopped server left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from trained_project import art_command

import art
from art.server.jobs.job_store import JobStore
from art.wire.jobs import SftConversation, SftJobRequest
from art.wire.training import OptimizerSpec

pytestmark = pytest.mark.slow

JOB = SftJobRequest(
    job_id="left",
    conversations=[
        SftConversation(
            name="one",
            messages=[
                {"role": "user", "content": "respond with yes, no or maybe"},
                {"role": "assistant", "content": "maybe"},
            ],
        )
    ],
    batches=[[0]],
    learning_rates=[1e-3],
    optimizer=OptimizerSpec(learning_rate=None),
)


async def leave_a_job(data_dir: Path) -> None:
    """A model, and a job of it that its server accepted before it died."""
    async with art.LocalBackend(path=data_dir) as backend:
        await backend.register(art.TrainableModel(name="player", project="games", base_model="art/nano"))
    table = JobStore(data_dir / "server" / "jobs.sqlite")
    await table.submit("games", "player", JOB)
    await table.close()


async def unfinished(data_dir: Path) -> list[str]:
    table = JobStore(data_dir / "server" / "jobs.sqlite")
    ids = await table.unfinished_ids("games", "player")
    await table.close()
    return ids


def test_a_chat_trains_nothing_and_resume_finishes_the_job(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    asyncio.run(leave_a_job(data_dir))
    step = data_dir / "games" / "models" / "player" / "checkpoints" / "0001"

    for name in ("art/nano-games", "games/player"):
        chat = art_command("chat", name, "--once", "yes", "--max-tokens", "2", "--data-dir", str(data_dir))
        assert chat.returncode == 0, chat.stderr
        assert asyncio.run(unfinished(data_dir)) == ["left"] and not step.exists()
    log = (data_dir / "server" / "logs" / "server.log").read_text()
    assert "for `art resume games/player`" in log and "is resumed" not in log

    resumed = art_command("resume", "--data-dir", str(data_dir))
    assert resumed.returncode == 0, resumed.stderr
    assert "games/player: job left made step 1" in resumed.stdout
    assert asyncio.run(unfinished(data_dir)) == [] and step.exists()
    again = art_command("resume", "games/player", "--data-dir", str(data_dir))
    assert (again.returncode, again.stdout) == (0, "Nothing to resume: no training job is unfinished.\n")
