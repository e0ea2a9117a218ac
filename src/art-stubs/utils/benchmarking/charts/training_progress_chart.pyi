# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.benchmarking.progress_chart import training_progress_chart as training_progress_chart

__all__ = ["training_progress_chart"]

