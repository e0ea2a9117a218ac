# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.benchmarking.step_spread import calculate_step_std_dev as calculate_step_std_dev

__all__ = ["calculate_step_std_dev"]

