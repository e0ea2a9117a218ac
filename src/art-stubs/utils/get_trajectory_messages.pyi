# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.trajectories import get_trajectory_messages as get_trajectory_messages

__all__ = ["get_trajectory_messages"]

