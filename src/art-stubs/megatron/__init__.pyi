# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from typing import Any


__all__ = []

MegatronBackend: Any
def __getattr__(name: str) -> Any: ...
