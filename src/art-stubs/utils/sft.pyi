# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.options.learning_rates import create_lr_schedule as create_lr_schedule
from art.client.sft.sft_request import resolve_sft_batch_size as resolve_sft_batch_size
from art_extensions.sft_data.datasets import SFTChunk as SFTChunk
from art_extensions.sft_data.datasets import create_sft_dataset_iterator as create_sft_dataset_iterator
from art_extensions.sft_data.datasets import get_file_row_count as get_file_row_count
from art_extensions.sft_data.datasets import iterate_file as iterate_file
from art_extensions.sft_data.datasets import train_sft_from_file as train_sft_from_file

__all__ = ["SFTChunk", "create_lr_schedule", "create_sft_dataset_iterator", "get_file_row_count", "iterate_file", "resolve_sft_batch_size", "train_sft_from_file"]

