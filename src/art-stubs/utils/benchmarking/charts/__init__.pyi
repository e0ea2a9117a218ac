# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.benchmark_charts import percentage_comparison_bar_chart as percentage_comparison_bar_chart
from art_extensions.compat.benchmark_charts import training_progress_chart as training_progress_chart

__all__ = ["percentage_comparison_bar_chart", "training_progress_chart"]

