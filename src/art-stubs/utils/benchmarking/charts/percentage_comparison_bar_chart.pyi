# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.benchmark_charts import percentage_comparison_bar_chart as percentage_comparison_bar_chart

__all__ = ["percentage_comparison_bar_chart"]

