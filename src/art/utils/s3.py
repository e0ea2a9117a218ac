"""Models in buckets; the code is in `art.storage`."""

from __future__ import annotations

from art.errors import ForbiddenBucketCreationError
from art.errors import StorageError as S3SyncError
from art.storage.arriving import commit_here
from art.storage.location import model_url
from art.storage.pull import Wanted, pull_model
from art.storage.push import push_model
from art.storage.store import Store

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
