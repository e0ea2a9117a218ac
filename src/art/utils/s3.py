"""Models in buckets; the code is in `art.storage`."""

from __future__ import annotations

from typing import Any

from art.errors import ForbiddenBucketCreationError
from art.errors import StorageError as S3SyncError
from art.storage.arriving import commit_here
from art.storage.location import model_url
from art.storage.pull import Wanted, pull_model
from art.storage.push import push_model
from art.storage.store import Store
from art.unbuilt import unbuilt_names

__all__ = [
    "ForbiddenBucketCreationError",
    "S3SyncError",
    "Store",
    "Wanted",
    "commit_here",
    "model_url",
    "pull_model",
    "push_model",
]

_PULL = "`await backend._experimental_pull_model_checkpoint(model, s3_bucket=...)` fetches a model's steps"
_PUSH = "`await backend._experimental_push_to_s3(model, s3_bucket=...)` sends a model's steps"
_STORE = "`Store` of this module reads and writes any bucket that fsspec knows"
NAMES = {
    "archive_and_presign_step_url": "`await art.utils.deployment.deploy_model(...)` does it for a provider",
    "build_s3_path": "`model_url(project, name, bucket=..., prefix=...)` of this module",
    "build_s3_zipped_step_path": "`await art.utils.deployment.deploy_model(...)` does it for a provider",
    "ensure_bucket_exists": _STORE,
    "pull_model_from_s3": _PULL,
    "push_model_to_s3": _PUSH,
    "s3_sync": _STORE,
}


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)
