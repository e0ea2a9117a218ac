"""The logs of a model that are in a bucket, for programs of older releases."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from art.process.files import write_whole
from art.tracking.folders import model_folder, stored_name
from art_extensions.buckets.bucket_push import is_side_file, keeps_more, not_written_meanwhile
from art_extensions.buckets.store import Store, model_url

if TYPE_CHECKING:
    from art.model import Model


async def pull_model_trajectories(
    model: Model[Any, Any], s3_bucket: str | None = None, prefix: str | None = None
) -> list[str]:
    """Copy a model's `trajectories` folder from a bucket into the model's folder here.

    s3_bucket: a name or any URL that fsspec knows; by default the environment's `BACKUP_BUCKET`. Files that
    are here and differ are replaced, others stay. Returns the paths that were copied, relative to the
    model's folder.

    Raises: ConfigurationError when no bucket is named, StorageError, DeadlineError.
    """
    return await asyncio.to_thread(_pull_files, model, s3_bucket, prefix)


def _pull_files(model: Model[Any, Any], bucket: str | None, prefix: str | None) -> list[str]:
    folder = model_folder(model.base_path, model.project, stored_name(model))
    store = Store(model_url(model.project, stored_name(model), bucket=bucket, prefix=prefix))

    def pull(path: str) -> str | None:
        target, content = folder / path, store.read(path)
        with not_written_meanwhile(folder, path):
            here = target.read_bytes() if target.is_file() else None
            if here is not None and (here == content or keeps_more(path, here, content)):
                return None
            write_whole(target, content)
        return path

    logs = [path for path in store.sizes() if path.startswith("trajectories/") and is_side_file(path)]
    return sorted(path for path in store.run_each(pull, sorted(logs)) if path)
