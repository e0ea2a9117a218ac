"""Deleting checkpoints: the newest stays, and what a running job reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from art.server.catalog import Catalog
from art.server.control import Control
from art.server.jobs.job_store import JobStore
from art.server.ledger.ledger import Ledger
from art.server.workers.supervisor import WorkerOptions
from art.wire.jobs import TrainJobRequest, TrainResultInfo
from art.wire.models import RegisterRequest


async def test_what_a_running_job_reads_is_not_deleted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    options = WorkerOptions(engine_options={}, trainer_options={})
    control = Control(data_dir=tmp_path, catalog=Catalog(), ledger=ledger, options=options)
    control.models.register(RegisterRequest(project="games", name="a", base_model="org/base"), "org/base")
    checkpoints = control.models.checkpoints_of("games", "a")
    for step in range(4):
        checkpoints.fresh_folder(step).mkdir()
        checkpoints.commit(step)
    with control.in_use.using(checkpoints.path(1).resolve()):
        reply = await control.deletions.delete_checkpoints("games", "a", keep=[2])
    assert reply.deleted == [0] and checkpoints.steps() == [1, 2, 3]
    assert (await control.deletions.delete_checkpoints("games", "a", keep=[])).deleted == [1, 2]
    await control.close()
    await ledger.close()


async def test_a_step_that_was_made_and_is_gone_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    options = WorkerOptions(engine_options={}, trainer_options={})
    control = Control(data_dir=tmp_path, catalog=Catalog(), ledger=ledger, options=options)
    model = control.models.register(
        RegisterRequest(project="games", name="a", base_model="org/base"), "org/base"
    )
    checkpoints = control.models.checkpoints_of("games", "a")
    jobs = JobStore(control.layout.jobs_file)
    for step in (1, 2):
        checkpoints.fresh_folder(step).mkdir()
        checkpoints.commit(step)
        job = TrainJobRequest(job_id=f"job-{step}", groups=[], optimizer={"learning_rate": None})
        await jobs.submit("games", "a", job)
        await jobs.finish(job.job_id, TrainResultInfo(step=step, metrics={}, sheet={}))
    await control._tell_lost_steps(model)
    assert not caplog.records
    shutil.rmtree(checkpoints.path(2))
    await control._tell_lost_steps(model)
    assert "games/a goes on from step 1, but step 2 was made" in caplog.text
    for one in (jobs, control, ledger):
        await one.close()
