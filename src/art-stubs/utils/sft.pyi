# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.datasets.batch_size import resolve_sft_batch_size as resolve_sft_batch_size
from art.datasets.chunks import SFTChunk as SFTChunk
from art.datasets.chunks import create_sft_dataset_iterator as create_sft_dataset_iterator
from art.datasets.schedule import create_lr_schedule as create_lr_schedule
from art.datasets.sft_file import get_file_row_count as get_file_row_count
from art.datasets.sft_file import iterate_file as iterate_file
from art.datasets.sft_file import train_sft_from_file as train_sft_from_file

__all__ = ["SFTChunk", "create_lr_schedule", "create_sft_dataset_iterator", "get_file_row_count", "iterate_file", "resolve_sft_batch_size", "train_sft_from_file"]

