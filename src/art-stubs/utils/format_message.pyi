# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.trajectories import format_message as format_message

__all__ = ["format_message"]

