# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from typing import Any


__all__ = []

Loss: Any
loss_fn: Any
shift_tensor: Any
