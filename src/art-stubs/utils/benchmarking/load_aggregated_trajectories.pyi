# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.benchmarking import load_aggregated_trajectories as load_aggregated_trajectories

__all__ = ["load_aggregated_trajectories"]

