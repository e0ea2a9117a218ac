"""A chat, an evaluation and an export train nothing; `art resume`, or the program itself, finishes what a
stopped server left.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from trained_project import art_command

import art
from art.server.jobs.job_store import JobStore
from art.wire.jobs import SftConversation, SftJobRequest
from art.wire.training import OptimizerSpec
from waiting import DEADLINE_S

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


async def leave_a_job(data_dir: Path, job_id: str = "left") -> None:
    """A job that its server accepted before it died."""
    table = JobStore(data_dir / "server" / "jobs.sqlite")
    await table.submit("games", "player", JOB.model_copy(update={"job_id": job_id}))
    await table.close()


async def register(data_dir: Path, until_step: int) -> None:
    """What a program does first. It stays until the model is at a step."""
    model = art.TrainableModel(name="player", project="games", base_model="art/nano")
    async with art.LocalBackend(path=data_dir) as backend, asyncio.timeout(DEADLINE_S):
        await backend.register(model)
        while max(await backend.checkpoint_steps(model)) < until_step:  # noqa: ASYNC110 - nobody tells it
            await asyncio.sleep(0.2)


async def unfinished(data_dir: Path) -> list[str]:
    table = JobStore(data_dir / "server" / "jobs.sqlite")
    ids = await table.unfinished_ids("games", "player")
    await table.close()
    return ids


def test_what_reads_a_model_trains_nothing_and_resume_or_the_program_finishes_the_job(
    tmp_path: Path,
) -> None:
    data_dir = tmp_path / "data"
    asyncio.run(register(data_dir, until_step=0))
    asyncio.run(leave_a_job(data_dir))
    step = data_dir / "games" / "models" / "player" / "checkpoints" / "0001"

    once = ("--once", "yes", "--max-tokens", "2")
    for words in (
        ("chat", "art/nano-games", *once),
        ("chat", "games/player", *once),
        ("eval", "games/player", "--task", "yes-no-maybe", "--eval-rollouts", "2"),
        ("export", "games/player", "--format", "peft", "--output", str(tmp_path / "exported")),
    ):
        done = art_command(*words, "--data-dir", str(data_dir))
        assert done.returncode == 0, done.stderr
        assert asyncio.run(unfinished(data_dir)) == ["left"] and not step.exists()
    assert (tmp_path / "exported" / "adapter_model.safetensors").exists()
    log = (data_dir / "server" / "logs" / "server.log").read_text()
    assert "for `art resume games/player`" in log and "is resumed" not in log

    resumed = art_command("resume", "--data-dir", str(data_dir))
    assert resumed.returncode == 0, resumed.stderr
    assert "games/player: job left made step 1" in resumed.stdout
    assert asyncio.run(unfinished(data_dir)) == [] and step.exists()
    again = art_command("resume", "games/player", "--data-dir", str(data_dir))
    asyncio.run(leave_a_job(data_dir, "next"))
    asyncio.run(register(data_dir, until_step=2))
    if asyncio.run(unfinished(data_dir)):  # the server ended between the checkpoint and the row of its job
        asyncio.run(register(data_dir, until_step=2))
    assert asyncio.run(unfinished(data_dir)) == []
    assert (again.returncode, again.stdout) == (0, "Nothing to resume: no training job is unfinished.\n")
