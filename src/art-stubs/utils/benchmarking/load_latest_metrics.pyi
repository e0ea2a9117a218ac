# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.benchmarking import load_latest_metrics as load_latest_metrics

__all__ = ["load_latest_metrics"]

