"""What is deleted on request: models, checkpoints, loaded steps. Nothing that is being read goes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence

from art.errors import RequestError
from art.server.checkpoints.arrivals import Arrivals
from art.server.checkpoints.in_use import InUse
from art.server.jobs.jobs import Jobs
from art.server.models.catalog import Catalog
from art.server.models.models import Models
from art.server.models.stages import Stages
from art.wire.models import DeleteCheckpointsReply, UnloadStepsReply


class Deletions:
    """One for the server. `arrivals` keep others off a model, `jobs` tell whether it is trained."""

    def __init__(
        self,
        models: Models,
        *,
        stages: Stages,
        catalog: Catalog,
        arrivals: Arrivals,
        jobs: Jobs,
        in_use: InUse,
    ) -> None:
        self._models = models
        self._stages = stages
        self._catalog = catalog
        self._arrivals = arrivals
        self._jobs = jobs
        self._in_use = in_use

    async def delete_checkpoints(
        self, project: str, name: str, keep: Sequence[int]
    ) -> DeleteCheckpointsReply:
        """Remove every checkpoint but those to keep, the newest, and what running jobs read.

        Raises NotFoundError.
        """
        model = self._models.get(project, name)
        checkpoints = self._models.checkpoints(model)
        kept = {*keep, checkpoints.newest()}
        doomed = [
            step
            for step in checkpoints.steps()
            if step not in kept and checkpoints.path(step) not in self._in_use
        ]
        loaded = self._catalog.loaded_steps(project, name)
        for step in doomed:
            stage = self._stages.opened(model.key)
            if step in loaded and stage is not None:
                stage.retire(step)
            await asyncio.to_thread(checkpoints.delete, step)
        return DeleteCheckpointsReply(deleted=doomed)

    def unload_steps(self, project: str, name: str, keep: Sequence[int]) -> UnloadStepsReply:
        """Unload every step but those to keep and the newest, each when its last request has ended.

        Raises NotFoundError.
        """
        model = self._models.get(project, name)
        newest, loaded = self._models.checkpoints(model).newest(), self._catalog.loaded_steps(project, name)
        stage = self._stages.opened(model.key)
        if stage is None:
            return UnloadStepsReply(unloaded=[])
        gone = [step for step in sorted(loaded) if step not in keep and step != newest]
        for step in gone:
            stage.retire(step)
        return UnloadStepsReply(unloaded=gone)

    async def delete_model(self, project: str, name: str) -> None:
        """Remove a model: its name, its adapters and its checkpoints. Requests that use it come to their end.

        Raises NotFoundError, RequestError (409) while a job of it is queued or running.
        """
        model = self._models.get(project, name)
        async with self._arrivals.exclusive(project, name), self._stages.opening(model):
            self._models.get(project, name)  # two may have asked
            if self._jobs.busy(model.key):
                raise RequestError(
                    f"model {model.key} has an unfinished training job; delete it when that has ended",
                    status=409,
                    code="model_busy",
                )
            # Nothing is awaited between this question and the end of the model.
            doomed = self._models.forget(model)
            self._stages.remove(model)
        if doomed is not None:
            await asyncio.to_thread(shutil.rmtree, doomed)
