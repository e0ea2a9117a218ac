# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.utils.old_benchmarking.display_image_grid import display_image_grid as display_image_grid
from art.utils.old_benchmarking.generate_comparison_table import generate_comparison_table as generate_comparison_table
from art.utils.old_benchmarking.generate_line_graphs import generate_line_graphs as generate_line_graphs
from art.utils.old_benchmarking.load_benchmarked_models import load_benchmarked_models as load_benchmarked_models

__all__ = ["display_image_grid", "generate_comparison_table", "generate_line_graphs", "load_benchmarked_models"]

