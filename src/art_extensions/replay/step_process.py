"""The process that makes a step again, apart from the one that compares: rank 0 of several, or one that kills
itself on the way. One line of JSON on stdin says what to do; on stdout it answers with

    {"port": 41234}         where the other ranks meet it, if there are any
    {"result": {...}}       the step is committed; or
    {"error": "..."}        it cannot be made
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from art.errors import ARTError
from art.process.resources import resume_collector
from art.training.lockstep import meet
from art.training.trainer import Trainer
from art.training.worker import join_gang, leave_out_bitsandbytes, load_trainer
from art.wire.records import Strict
from art.wire.training import TrainerConfig
from art_extensions.replay.changed_step import StepChanges
from art_extensions.replay.kill_place import KillPlace, ReplayKiller
from art_extensions.replay.made_step import make_step
from art_extensions.replay.recorded_step import read_recorded

MODULE = "art_extensions.replay.step_process"


class StepTask(Strict):
    """A step to make again, and where."""

    run: str
    step: int
    data_dir: Path
    database: str | None = None
    changes: dict[str, Any]
    folder: Path
    config: TrainerConfig
    kill_at: KillPlace | None = None
    gradient: Path | None = None
    """The file for the step's gradient."""


def main() -> int:
    """Reads the task, makes the step, answers."""
    task = StepTask.model_validate_json(sys.stdin.readline())
    try:
        recorded = read_recorded(task.run, task.step, task.data_dir, task.database)
        asked = StepChanges(**task.changes).request(recorded.request)
        made = make_step(
            recorded,
            asked,
            _load(task.config),
            source=str(task.config.model_path),
            folder=task.folder,
            killer=ReplayKiller(task.kill_at),
            gradient=task.gradient,
        )
    except ARTError as error:
        _answer(error=str(error))
        return 2
    _answer(result=made.result.model_dump(mode="json"))
    return 0


def _load(config: TrainerConfig) -> Trainer:
    gang = config.gang
    if gang is None:
        trainer = load_trainer(config)
        resume_collector()
        return trainer
    leave_out_bitsandbytes(config)
    store, port = meet(config.host, gang)
    _answer(port=port)
    return join_gang(config, gang, store)


def _answer(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
