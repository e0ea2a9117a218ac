# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.buckets.bucket_layout import migrate_s3_checkpoints_to_new_structure as migrate_s3_checkpoints_to_new_structure
from art_extensions.buckets.bucket_pull import copy_checkpoint as copy_checkpoint
from art_extensions.buckets.bucket_pull import local_checkpoint as local_checkpoint
from art_extensions.buckets.bucket_pull import newest_of as newest_of
from art_extensions.buckets.bucket_push import complete_steps as complete_steps
from art_extensions.buckets.bucket_push import local_steps as local_steps

__all__ = ["complete_steps", "copy_checkpoint", "local_checkpoint", "local_steps", "migrate_s3_checkpoints_to_new_structure", "newest_of"]

