# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.options.learning_rates import create_lr_schedule as create_lr_schedule
from art.client.sft.sft_dataset import SFTChunk as SFTChunk
from art.client.sft.sft_dataset import create_sft_dataset_iterator as create_sft_dataset_iterator
from art.client.sft.sft_dataset import get_file_row_count as get_file_row_count
from art.client.sft.sft_dataset import iterate_file as iterate_file
from art.client.sft.sft_dataset import resolve_sft_batch_size as resolve_sft_batch_size
from art.client.sft.sft_dataset import train_sft_from_file as train_sft_from_file

__all__ = ["SFTChunk", "create_lr_schedule", "create_sft_dataset_iterator", "get_file_row_count", "iterate_file", "resolve_sft_batch_size", "train_sft_from_file"]

