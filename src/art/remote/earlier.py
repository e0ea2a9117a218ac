"""Training jobs of an earlier process: a program that was killed finds out what became of its last batch.

The server finishes a job that it accepted, whatever happens to the program that asked for it.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from art.errors import ARTError, NotFoundError
from art.remote.connection import ServerConnection
from art.remote.jobs import JobDeadlines, follow_job
from art.remote.paths import model_path
from art.wire.jobs import JobEvent, JobInfo, TrainResultInfo
from art.wire.models import ModelInfo

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel
    from art.types import TrainResult

_log = logging.getLogger(__name__)


class EarlierJobs:
    """Mixin of RemoteBackend."""

    _connection: ServerConnection
    _deadlines: JobDeadlines

    async def training_result(self, model: AnyTrainableModel, job_id: str) -> TrainResult | None:
        """What came of the job that `train(..., job_id=...)` named; waits for one that is still running.

        None: the server has no such job, or it failed; its batch made no step. Raises DeadlineError.
        """
        try:
            info = await self._job(job_id)
            if info.state in ("queued", "running"):
                with contextlib.suppress(ARTError):
                    await follow_job(self._connection, job_id, _unwatched, self._deadlines)
                info = await self._job(job_id)
        except NotFoundError:
            return None
        if info.result is None:
            _log.warning(
                "training job %s of %s made no step: %s", job_id, model.name, info.error or info.state
            )
        return None if info.result is None else self._trained(info.result)

    async def settled_step(self, model: AnyTrainableModel) -> int:
        """The newest step, after all training jobs of the model that the server has accepted have ended."""
        info = await self._connection.call("GET", model_path(model), ModelInfo)
        for job_id in info.unfinished_jobs:
            _log.info("%s: waiting for job %s, which an earlier program left", model.name, job_id)
            await self.training_result(model, job_id)
        return (await self._connection.call("GET", model_path(model), ModelInfo)).step

    async def checkpoint_steps(self, model: AnyTrainableModel) -> list[int]:
        """The steps that have a checkpoint on the server, in order."""
        return (await self._connection.call("GET", model_path(model), ModelInfo)).checkpoints

    async def _job(self, job_id: str) -> JobInfo:
        return await self._connection.call("GET", f"/art/jobs/{job_id}", JobInfo)

    if TYPE_CHECKING:

        def _trained(self, info: TrainResultInfo) -> TrainResult: ...


def _unwatched(event: JobEvent) -> None:
    """Nobody watches."""
