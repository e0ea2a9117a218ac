"""What programs ask of a local backend beside training: forks, buckets, deployment.

The `_experimental_` names are those that notebooks use; each has a public twin.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import quote

from art.environment import BACKUP_BUCKET, variable
from art.errors import CheckpointMissingError, ConfigurationError
from art.remote import forking
from art.remote.connection import ServerConnection
from art.tracking.progress import open_progress
from art.wire.models import AdoptReply, AdoptRequest

if TYPE_CHECKING:
    from art.backend import AnyModel
    from art.storage.pull import PullReport, Wanted
    from art.storage.push import PushReport
    from art.storage.store import Store, Told

_log = logging.getLogger(__name__)

T = TypeVar("T")


class CheckpointTransfers:
    """Mixin of LocalBackend: it needs the folder and the connection, and starts the server when it must."""

    _path: Path
    _connection: ServerConnection

    # -- forks --

    async def fork_checkpoint(
        self,
        model: AnyModel,
        from_model: str,
        *,
        from_project: str | None = None,
        step: int | None = None,
        not_after_step: int | None = None,
    ) -> int:
        """See `art.remote.forking`. Returns the step that the model is at now."""
        reply = await forking.fork_checkpoint(
            self._connection,
            model,
            from_model,
            from_project=from_project,
            step=step,
            not_after_step=not_after_step,
        )
        return reply.step

    async def _experimental_fork_checkpoint(
        self,
        model: AnyModel,
        from_model: str,
        from_project: str | None = None,
        from_s3_bucket: str | None = None,
        not_after_step: int | None = None,
        verbose: bool = False,
        prefix: str | None = None,
    ) -> None:
        """`fork_checkpoint` of the newest step up to `not_after_step`, pulled from a bucket first if one is
        given.
        """
        project = from_project or model.project
        if from_s3_bucket is not None:
            from art.storage.pull import Wanted

            wanted = Wanted(not_after=not_after_step, newest=not_after_step is None, side_files=False)
            await self._pull(project, from_model, wanted, from_s3_bucket, prefix, verbose)
        await self.fork_checkpoint(model, from_model, from_project=project, not_after_step=not_after_step)

    # -- buckets --

    async def push_model(
        self,
        model: AnyModel,
        *,
        bucket: str | None = None,
        prefix: str | None = None,
        delete: bool = False,
        exclude: Collection[str] = (),
        verbose: bool = False,
    ) -> PushReport:
        """Copy the model's checkpoints, history and trajectories to a bucket: what changed, and no key.

        bucket: a name (of S3), any URL that fsspec knows, or None for `BACKUP_BUCKET`. delete: what is not
        here goes there too. Raises StorageError, ForbiddenBucketCreationError, CheckpointMissingError,
        ConfigurationError, DeadlineError.
        """
        from art.storage.push import push_model

        folder, store = self._folder(model.project, model.name), _store(model, bucket, prefix)
        return await _in_thread(
            store,
            f"push {model.name}" if verbose else None,
            lambda told: push_model(folder, store, delete=delete, exclude=exclude, told=told),
        )

    async def pull_model(
        self,
        model: AnyModel,
        *,
        bucket: str | None = None,
        prefix: str | None = None,
        step: int | None = None,
        latest_only: bool = False,
        delete: bool = False,
        exclude: Collection[str] = (),
        verbose: bool = False,
    ) -> PullReport:
        """Copy a model from a bucket into this backend's folder; it then goes on exactly where it stood.

        step, latest_only: this checkpoint alone, or the newest alone. delete: what is not there goes here
        too. A running job is waited for. Raises CheckpointMissingError, StepMissingError, StorageError (also
        when both went on by themselves), ConfigurationError, DeadlineError.
        """
        from art.storage.pull import Wanted

        wanted = Wanted(step=step, newest=latest_only, delete=delete, exclude=tuple(exclude))
        return await self._pull(model.project, model.name, wanted, bucket, prefix, verbose)

    async def _experimental_pull_model_checkpoint(
        self,
        model: AnyModel,
        *,
        step: int | Literal["latest"] | None = None,
        local_path: str | None = None,
        s3_bucket: str | None = None,
        prefix: str | None = None,
        verbose: bool = False,
    ) -> str:
        """The folder of a checkpoint: here if it is here, else from the bucket. None and "latest": the newest
        of both; an untrained step 0 counts as none. local_path: a copy there, which is returned.
        """
        from art.storage.copies import copy_checkpoint, newest_of
        from art.storage.pull import Wanted
        from art.storage.steps import local_steps

        if not (step is None or step == "latest" or (isinstance(step, int) and step >= 0)):
            raise ConfigurationError(f"step={step!r}: it is a number, 'latest' or None")
        folder = self._folder(model.project, model.name)
        wanted_step = step if isinstance(step, int) else None
        if wanted_step is None:
            store = _store(model, s3_bucket, prefix) if s3_bucket or variable(BACKUP_BUCKET) else None
            wanted_step = await asyncio.to_thread(newest_of, folder, store)
        if wanted_step not in local_steps(folder):
            if not (s3_bucket or variable(BACKUP_BUCKET)):
                raise CheckpointMissingError(
                    f"No checkpoints found for model {model.name} at step {wanted_step} in {folder}, and no "
                    f"bucket is given. Available steps: {list(local_steps(folder))}"
                )
            wanted = Wanted(step=wanted_step, side_files=False)
            await self._pull(model.project, model.name, wanted, s3_bucket, prefix, verbose)
        checkpoint = local_steps(folder)[wanted_step]
        if local_path is None:
            return str(checkpoint)
        return str(await asyncio.to_thread(copy_checkpoint, checkpoint, Path(local_path)))

    async def _experimental_pull_from_s3(
        self,
        model: AnyModel,
        *,
        s3_bucket: str | None = None,
        prefix: str | None = None,
        verbose: bool = False,
        delete: bool = False,
        only_step: int | None = None,
        step: int | None = None,
        exclude: Sequence[str] | None = None,
        latest_only: bool = False,
    ) -> None:
        """`pull_model`. only_step: this checkpoint and no other file. A bucket without the model is no error
        where no step is named: a first run pulls too.
        """
        from art.storage.pull import Wanted

        warnings.warn(
            "_experimental_pull_from_s3 is an older name: use backend.pull_model, or "
            "_experimental_pull_model_checkpoint for one checkpoint",
            DeprecationWarning,
            stacklevel=2,
        )
        wanted = Wanted(
            step=step if only_step is None else only_step,
            newest=latest_only,
            side_files=only_step is None,
            delete=delete,
            exclude=tuple(exclude or ()),
        )
        try:
            await self._pull(model.project, model.name, wanted, s3_bucket, prefix, verbose)
        except CheckpointMissingError as error:
            if wanted.step is not None:
                raise
            _log.info("nothing was pulled: %s", error)

    async def _experimental_push_to_s3(
        self,
        model: AnyModel,
        *,
        s3_bucket: str | None = None,
        prefix: str | None = None,
        verbose: bool = False,
        delete: bool = False,
    ) -> None:
        """`push_model`."""
        await self.push_model(model, bucket=s3_bucket, prefix=prefix, verbose=verbose, delete=delete)

    async def _pull(
        self,
        project: str,
        name: str,
        wanted: Wanted,
        bucket: str | None,
        prefix: str | None,
        verbose: bool,
    ) -> PullReport:
        from art.storage.location import model_url
        from art.storage.pull import pull_model
        from art.storage.store import Store

        folder, loop = self._folder(project, name), asyncio.get_running_loop()
        store = Store(model_url(project, name, bucket=bucket, prefix=prefix))
        path = f"/art/models/{quote(project, safe='')}/{quote(name, safe='')}/adopt"

        def commit(steps: Sequence[int], set_aside: Sequence[int]) -> None:
            # The server moves them: only it knows whether the model is being trained.
            asked = AdoptRequest(steps=list(steps), set_aside=list(set_aside))
            call = self._connection.call("POST", path, AdoptReply, asked, deadline_s=forking.FORK_S)
            asyncio.run_coroutine_threadsafe(call, loop).result(forking.FORK_S + 60)

        return await _in_thread(
            store,
            f"pull {name}" if verbose else None,
            lambda told: pull_model(store, folder, wanted, commit=commit, told=told),
        )

    def _folder(self, project: str, name: str) -> Path:
        from art.storage.location import model_folder

        return model_folder(self._path, project, name)


def _store(model: AnyModel, bucket: str | None, prefix: str | None) -> Store:
    from art.storage.location import model_url
    from art.storage.store import Store

    return Store(model_url(model.project, model.name, bucket=bucket, prefix=prefix))


async def _in_thread(store: Store, shown: str | None, work: Callable[[Told], T]) -> T:
    """Run a transfer beside the event loop. When the caller is cancelled it ends at its next file."""
    with open_progress(shown, None) as progress:
        try:
            return await asyncio.to_thread(work, lambda done, total: progress.move_to(done, total, "steps"))
        except BaseException:
            store.stop()
            raise
