# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.compat.dev import EngineArgs as EngineArgs

__all__ = ["EngineArgs"]

