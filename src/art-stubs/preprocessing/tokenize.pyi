# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from typing import Any


__all__ = []

SFTBatch: Any
TokenizedResult: Any
tokenize_sft_batch: Any
tokenize_trajectory: Any
tokenize_trajectory_groups: Any
