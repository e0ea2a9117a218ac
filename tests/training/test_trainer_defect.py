"""A defect inside the trainer: the error that the client sees says what it was and where its traceback is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_policies import MODEL, games, request

from art.batch.encode import encode_batch
from art.engine.nano_models import resolve as nano_folder
from art.errors import TrainingError
from art.process.worker import Worker, WorkerSpec, module_command
from art.server.workers.trainer_worker import TrainerClient
from art.wire.training import LoraSpec, OpenRequest
from waiting import until


def fail(error: Exception) -> None:
    raise AssertionError(f"a defect is no reason to start the trainer again: {error}")


async def report(done: int, total: int) -> None:
    """Nobody watches."""


@pytest.mark.slow
async def test_a_defect_of_the_trainer_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    config = {"base_model": "art/nano-games", "model_path": str(nano_folder("art/nano-games")), "threads": 1}
    log = tmp_path / "trainer.log"
    worker = await Worker.start(
        WorkerSpec(name="trainer", command=module_command("broken_trainer"), config=config, log_path=log)
    )
    client = TrainerClient(worker.url, worker.key, timeout=60, idle=60, trouble=fail, log=log)
    try:
        await client.open(OpenRequest(model=MODEL, lora=LoraSpec(r=4, alpha=8)))
        batch = games()
        with pytest.raises(TrainingError) as trained:
            await client.train(encode_batch(batch, request(batch)), report)
        with pytest.raises(TrainingError) as saved:
            await client.save(MODEL, tmp_path / "saved")
        await until(lambda: log.read_text().count("in _meet_defect") >= 2)
    finally:
        await client.aclose()
        await worker.stop()
    for failed in (trained, saved):
        assert "KeyError: 'no such column'" in str(failed.value) and str(log) in str(failed.value)
