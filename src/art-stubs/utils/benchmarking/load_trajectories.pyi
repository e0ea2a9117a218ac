# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.buckets.bucket_trajectories import pull_model_trajectories as pull_model_trajectories
from art_extensions.compat.benchmarking import load_trajectories as load_trajectories

__all__ = ["load_trajectories", "pull_model_trajectories"]

