# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from typing import Any


__all__ = []

generate_line_graphs: Any
