"""A data set in shuffled batches: the import path that users know."""

from __future__ import annotations

from art.datasets.iterate import DatasetBatch, iterate_dataset

__all__ = ["DatasetBatch", "iterate_dataset"]
