# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.benchmarking import calculate_step_std_dev as calculate_step_std_dev

__all__ = ["calculate_step_std_dev"]

