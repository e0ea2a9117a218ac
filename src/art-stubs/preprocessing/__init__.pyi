# Written by tests/compat/make_stubs.py of art.compat.import_paths.

__all__ = []

