# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from typing import Any

from art.client.storage.bucket_store import Wanted as Wanted
from art.errors import ForbiddenBucketCreationError as ForbiddenBucketCreationError
from art.errors import StorageError as S3SyncError
from art_extensions.buckets.bucket_pull import commit_here as commit_here
from art_extensions.buckets.bucket_pull import pull_model as pull_model
from art_extensions.buckets.bucket_push import push_model as push_model
from art_extensions.buckets.store import Store as Store
from art_extensions.buckets.store import model_url as model_url

__all__ = ["ForbiddenBucketCreationError", "S3SyncError", "Store", "Wanted", "commit_here", "model_url", "pull_model", "push_model"]

archive_and_presign_step_url: Any
build_s3_path: Any
build_s3_zipped_step_path: Any
ensure_bucket_exists: Any
pull_model_from_s3: Any
push_model_to_s3: Any
s3_sync: Any
