"""Models and checkpoints are deleted, and nothing that is being read: a model with an unfinished job, the
newest checkpoint and those that running jobs read stay.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from art.errors import RequestError
from art.process.in_use import InUse
from art.server.catalog import Catalog
from art.server.checkpoints.registered_models import RegisteredModels
from art.server.jobs.training_jobs import TrainingJobs
from art.server.promotion.checkpoint_imports import CheckpointImports
from art.server.promotion.promote import ServedModels
from art.wire.models import DeleteCheckpointsReply, UnloadStepsReply


@dataclass(frozen=True, kw_only=True)
class ModelDeletions:
    """One for the server. `imports` keep others off a model, `jobs` tell whether it is trained."""

    models: RegisteredModels
    served_models: ServedModels
    catalog: Catalog
    imports: CheckpointImports
    jobs: TrainingJobs
    in_use: InUse[Path]

    async def delete_checkpoints(
        self, project: str, name: str, keep: Sequence[int]
    ) -> DeleteCheckpointsReply:
        """Remove every checkpoint but those to keep, the newest, the served one, and what running jobs read.

        Raises NotFoundError.
        """
        model = self.models.get(project, name)
        checkpoints = self.models.checkpoints(model)
        kept = {*keep, checkpoints.newest(), self.catalog.served_step(project, name)}
        doomed = [
            step
            for step in checkpoints.steps()
            if step not in kept and checkpoints.path(step).resolve() not in self.in_use
        ]
        loaded = self.catalog.loaded_steps(project, name)
        for step in doomed:
            served = self.served_models.opened.get(model.key)
            if step in loaded and served is not None:
                served.retire(step)
            await asyncio.to_thread(checkpoints.delete, step)
        return DeleteCheckpointsReply(deleted=doomed)

    def unload_steps(self, project: str, name: str, keep: Sequence[int]) -> UnloadStepsReply:
        """Unload every step but those to keep, the newest and the served one, each when its last request has
        ended.

        Raises NotFoundError.
        """
        model = self.models.get(project, name)
        newest, loaded = self.models.checkpoints(model).newest(), self.catalog.loaded_steps(project, name)
        served = self.served_models.opened.get(model.key)
        if served is None:
            return UnloadStepsReply(unloaded=[])
        kept = {*keep, newest, self.catalog.served_step(project, name)}
        gone = [step for step in sorted(loaded) if step not in kept]
        for step in gone:
            served.retire(step)
        return UnloadStepsReply(unloaded=gone)

    async def delete_model(self, project: str, name: str) -> None:
        """Remove a model: its name, its adapters and its checkpoints. Requests that use it come to their end.

        Raises NotFoundError, RequestError (409) while a job of it is queued or running.
        """
        model = self.models.get(project, name)
        async with self.imports.exclusive(project, name), self.served_models.opening(model):
            self.models.get(project, name)  # two may have asked
            if self.jobs.busy(model.key):
                raise RequestError(
                    f"model {model.key} has an unfinished training job; delete it when that has ended",
                    status=409,
                    code="model_busy",
                )
            # Nothing is awaited between this question and the end of the model.
            doomed = self.models.forget(model)
            self.served_models.remove(model)
        if doomed is not None:
            await asyncio.to_thread(shutil.rmtree, doomed)
