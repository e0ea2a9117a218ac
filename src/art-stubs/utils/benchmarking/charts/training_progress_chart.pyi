# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.benchmark_charts import training_progress_chart as training_progress_chart

__all__ = ["training_progress_chart"]

