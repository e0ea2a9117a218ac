# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.benchmarking import filter_rename_model_split as filter_rename_model_split

__all__ = ["filter_rename_model_split"]

