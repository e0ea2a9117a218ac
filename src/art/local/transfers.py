"""A local backend's checkpoints: forked on the server, copied to buckets and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from art.remote.forking import FORK_S, Forks
from art.remote.paths import named_path
from art.tracking.progress import open_progress
from art.wire.models import AdoptReply, AdoptRequest

if TYPE_CHECKING:
    from art.backend import AnyModel
    from art.storage.pull import PullReport, Wanted
    from art.storage.push import PushReport
    from art.storage.store import Store, Told

T = TypeVar("T")


class Transfers(Forks):
    """Mixin of LocalBackend: it needs the folder and the connection, and starts the server when it must."""

    _path: Path

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

        # Opened beside the event loop: the first one loads the library of its kind of bucket.
        folder = self._folder(model.project, model.name)
        store = await asyncio.to_thread(store_of, model.project, model.name, bucket, prefix)
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

    async def _pull(
        self,
        project: str,
        name: str,
        wanted: Wanted,
        bucket: str | None,
        prefix: str | None,
        verbose: bool,
    ) -> PullReport:
        from art.storage.pull import pull_model

        folder, loop = self._folder(project, name), asyncio.get_running_loop()
        store = await asyncio.to_thread(store_of, project, name, bucket, prefix)
        path = f"{named_path(project, name)}/adopt"

        def commit(steps: Sequence[int], set_aside: Sequence[int]) -> None:
            # The server moves them: only it knows whether the model is being trained.
            asked = AdoptRequest(steps=list(steps), set_aside=list(set_aside))
            call = self._connection.call("POST", path, AdoptReply, asked, deadline_s=FORK_S)
            asyncio.run_coroutine_threadsafe(call, loop).result(FORK_S + 60)

        return await _in_thread(
            store,
            f"pull {name}" if verbose else None,
            lambda told: pull_model(store, folder, wanted, commit=commit, told=told),
        )

    def _folder(self, project: str, name: str) -> Path:
        from art.storage.location import model_folder

        return model_folder(self._path, project, name)


def store_of(project: str, name: str, bucket: str | None, prefix: str | None) -> Store:
    """Where a model's files are in a bucket. Raises ConfigurationError."""
    from art.storage.location import model_url
    from art.storage.store import Store

    return Store(model_url(project, name, bucket=bucket, prefix=prefix))


async def _in_thread(store: Store, shown: str | None, work: Callable[[Told], T]) -> T:
    """Run a transfer beside the event loop. When the caller is cancelled it ends at its next file."""
    with open_progress(shown, None) as progress:
        try:
            return await asyncio.to_thread(work, lambda done, total: progress.move_to(done, total, "steps"))
        except BaseException:
            store.stop()
            raise
