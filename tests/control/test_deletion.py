"""Deleting checkpoints: the newest stays, and what a running job reads."""

from __future__ import annotations

from pathlib import Path

from art.server.checkpoints.in_use import InUse
from art.server.control import Control
from art.server.ledger.ledger import Ledger
from art.server.models.catalog import Catalog
from art.server.workers.options import PairOptions
from art.wire.models import RegisterRequest


def test_a_folder_is_in_use_as_long_as_somebody_reads_it(tmp_path: Path) -> None:
    in_use = InUse()
    with in_use.reading(str(tmp_path)), in_use.reading(None):
        with in_use.reading(str(tmp_path / ".")):
            assert tmp_path in in_use
        assert tmp_path in in_use and tmp_path / "other" not in in_use
    assert tmp_path not in in_use


async def test_what_a_running_job_reads_is_not_deleted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    options = PairOptions(engine_options={}, trainer_options={})
    control = Control(data_dir=tmp_path, catalog=Catalog(), ledger=ledger, options=options)
    control.models.register(RegisterRequest(project="games", name="a", base_model="org/base"), "org/base")
    checkpoints = control.models.checkpoints_of("games", "a")
    for step in range(4):
        checkpoints.fresh_folder(step).mkdir()
        checkpoints.commit(step)
    with control.in_use.reading(str(checkpoints.path(1))):
        reply = await control.deletions.delete_checkpoints("games", "a", keep=[2])
    assert reply.deleted == [0] and checkpoints.steps() == [1, 2, 3]
    assert (await control.deletions.delete_checkpoints("games", "a", keep=[])).deleted == [1, 2]
    await control.close()
    await ledger.close()
