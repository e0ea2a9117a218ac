# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.capture import capture_yielded_trajectory as capture_yielded_trajectory
from art.client.capture import yield_trajectory as yield_trajectory

__all__ = ["capture_yielded_trajectory", "yield_trajectory"]

