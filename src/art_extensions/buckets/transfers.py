"""Transfers of a model beside the event loop, with their progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from art.tracking.progress import open_progress
from art_extensions.buckets.bucket_pull import pull_model
from art_extensions.buckets.bucket_push import archive_step, push_model
from art_extensions.buckets.store import Store, model_url

if TYPE_CHECKING:
    from art.client.storage.bucket_store import PullReport, PushReport, Wanted
    from art_extensions.buckets.store import OnProgress

T = TypeVar("T")


def store_of(project: str, name: str, bucket: str | None, prefix: str | None) -> Store:
    """Returns the place of a model's files in a bucket. Raises ConfigurationError."""
    return Store(model_url(project, name, bucket=bucket, prefix=prefix))


async def push_to_bucket(
    folder: Path,
    model: tuple[str, str],
    *,
    bucket: str | None,
    prefix: str | None,
    delete: bool,
    exclude: Collection[str],
    shown: str | None,
) -> PushReport:
    """Copies a model's folder to a bucket. model: project and name. shown: the title of the progress, if any.

    Raises what `push_model` raises, and ConfigurationError.
    """
    # Opened beside the event loop: the first one loads the library of its kind of bucket.
    store = await asyncio.to_thread(store_of, *model, bucket, prefix)
    return await _in_thread(
        store,
        shown,
        lambda on_progress: push_model(
            folder, store, delete=delete, exclude=exclude, on_progress=on_progress
        ),
    )


async def pull_from_bucket(
    folder: Path,
    model: tuple[str, str],
    wanted: Wanted,
    commit: Callable[[Sequence[int], Sequence[int]], None],
    *,
    bucket: str | None,
    prefix: str | None,
    shown: str | None,
) -> PullReport:
    """Copies what is wanted of a model from a bucket into its folder. commit: is called in a thread with the
    steps that are complete and those that are set aside for them.

    Raises what `pull_model` raises, and ConfigurationError.
    """
    store = await asyncio.to_thread(store_of, *model, bucket, prefix)
    return await _in_thread(
        store,
        shown,
        lambda on_progress: pull_model(store, folder, wanted, commit=commit, on_progress=on_progress),
    )


def sign_checkpoint(
    folder: Path, model: tuple[str, str], step: int, *, bucket: str | None, prefix: str | None, seconds: int
) -> str:
    """Puts the archive of a checkpoint into a bucket. Returns an address that is valid for `seconds`."""
    store = store_of(*model, bucket, prefix)
    return store.signed_url(archive_step(store, folder, step), seconds)


async def _in_thread(store: Store, shown: str | None, work: Callable[[OnProgress], T]) -> T:
    """Run a transfer beside the event loop. When the caller is cancelled it ends at its next file."""
    with open_progress(shown, None) as progress:
        try:
            return await asyncio.to_thread(work, lambda done, total: progress.move_to(done, total, "steps"))
        except BaseException:
            store.stop()
            raise
