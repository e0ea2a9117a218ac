# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.benchmarking.pull import pull_model_trajectories as pull_model_trajectories

__all__ = ["pull_model_trajectories"]

