# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.capture import auto_trajectory as auto_trajectory
from art.client.capture import capture_auto_trajectory as capture_auto_trajectory

__all__ = ["auto_trajectory", "capture_auto_trajectory"]

