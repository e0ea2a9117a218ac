# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.sft.sft_dataset import DatasetBatch as DatasetBatch
from art.client.sft.sft_dataset import iterate_dataset as iterate_dataset

__all__ = ["DatasetBatch", "iterate_dataset"]

