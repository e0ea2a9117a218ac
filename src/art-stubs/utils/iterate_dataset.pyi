# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.sft_data.datasets import DatasetBatch as DatasetBatch
from art_extensions.sft_data.datasets import iterate_dataset as iterate_dataset

__all__ = ["DatasetBatch", "iterate_dataset"]

