# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.datasets.iterate import DatasetBatch as DatasetBatch
from art.datasets.iterate import iterate_dataset as iterate_dataset

__all__ = ["DatasetBatch", "iterate_dataset"]

