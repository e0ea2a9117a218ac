# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from typing import Any


__all__ = []

DiskPackedTensors: Any
PackedTensors: Any
packed_tensors_from_tokenized_results: Any
