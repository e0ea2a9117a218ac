# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.tracking.folders import get_repo_root_path as get_repo_root_path

__all__ = ["get_repo_root_path"]

