"""A step that is made by processes of their own: several ranks, or one that is killed on the way and started
again. The leader is `step_process`, the other ranks are the trainer's own worker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from art.process.environment import inherited_variables
from art.process.threads import thread_variables
from art.process.worker import module_command
from art.server.workers.trainer_worker import TRAINER_MODULE
from art.wire.jobs import TrainResultInfo
from art.wire.training import RankSpec, Sharding, TrainerConfig
from art_extensions.replay.changed_step import StepChanges
from art_extensions.replay.kill_place import KillPlace
from art_extensions.replay.recorded_step import RecordedStep
from art_extensions.replay.recorded_tables import ReplayError
from art_extensions.replay.step_process import MODULE, StepTask

TAIL = 2000
"""Characters of the log of a process that failed, for the message."""


def make_step_elsewhere(
    recorded: RecordedStep,
    changes: StepChanges,
    config: TrainerConfig,
    *,
    data_dir: Path,
    database: str | None,
    folder: Path,
    ranks: int,
    sharding: Sharding,
    kill_at: KillPlace | None = None,
    gradient: Path | None = None,
) -> tuple[TrainResultInfo, list[str] | None]:
    """Makes the step in a folder. Returns its result, and what was in the folder of checkpoints when the
    process was killed (None: none was).

    Raises ReplayError, with what the process said or the end of its log.
    """
    task = StepTask(
        run=recorded.model.key,
        step=recorded.step,
        data_dir=data_dir,
        database=database,
        changes=asdict(changes),
        folder=folder,
        config=config,
        kill_at=kill_at,
        gradient=gradient,
    )
    log = folder / "process.log"
    result, left = _run(task, ranks, sharding, log), None
    if result is None:
        left = sorted(path.name for path in (folder / "checkpoints").glob("*"))
        result = _run(task.model_copy(update={"kill_at": None}), ranks, sharding, log)
    elif kill_at is not None:
        raise ReplayError(f"the step was made without coming to {kill_at}: nothing was killed")
    assert result is not None, "a process that nobody kills ends with a result or an error"
    return result, left


def _run(task: StepTask, ranks: int, sharding: Sharding, log: Path) -> TrainResultInfo | None:
    """One try; None: the process killed itself where it was told to."""
    with ExitStack() as started:
        own = task.model_copy(update={"config": _of_rank(task.config, 0, ranks, sharding)})
        leader = started.enter_context(_process(MODULE, own.model_dump_json(), ranks, log, answers=True))
        lost: list[int] = []
        assert leader.stdout is not None
        for line in leader.stdout:
            answer = _read_line(line)
            if "result" in answer:
                return TrainResultInfo.model_validate(answer["result"])
            if "error" in answer:
                raise ReplayError(str(answer["error"]))
            for rank in range(1, ranks if "port" in answer else 0):
                meeting = f"{task.config.host}:{answer['port']}"
                config = _of_rank(task.config, rank, ranks, sharding, meeting)
                follower = _process(TRAINER_MODULE, config.model_dump_json(), ranks, log)
                _watch(rank, started.enter_context(follower), leader, lost)
        code = leader.wait()
        if code == -signal.SIGKILL and task.kill_at is not None and not lost:
            return None
        what = f"rank {lost[0]} ended" if lost else f"the process that makes the step ended with code {code}"
        raise ReplayError(f"{what}:\n{log.read_text(errors='replace')[-TAIL:]}".rstrip())


def _of_rank(
    config: TrainerConfig, rank: int, ranks: int, sharding: Sharding, rendezvous: str | None = None
) -> TrainerConfig:
    if ranks == 1:
        return config
    gang = RankSpec(rank=rank, world=ranks, local_rank=rank, rendezvous=rendezvous, sharding=sharding)
    return config.model_copy(update={"gang": gang})


@contextmanager
def _process(
    module: str, line: str, copies: int, log: Path, *, answers: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A process that is told one line, and is killed at the end of the block. Its stdin stays open."""
    environment = inherited_variables()
    with log.open("a") as errors:
        process = subprocess.Popen(
            module_command(module),
            env={**environment, **thread_variables(environment, copies=copies)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else subprocess.DEVNULL,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: its log says why
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(BrokenPipeError):
            process.communicate()


def _watch(
    rank: int, follower: subprocess.Popen[str], leader: subprocess.Popen[str], lost: list[int]
) -> None:
    """Ends the leader where a rank ends before it: it would wait for that one for minutes."""

    def wait() -> None:
        follower.wait()
        if leader.poll() is None:
            lost.append(rank)
            leader.kill()

    threading.Thread(target=wait, name=f"rank {rank}", daemon=True).start()


def _read_line(line: str) -> dict[str, Any]:
    """Returns what the leader says; a library's line is nothing."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
