# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.tracking.folders import get_model_step as get_model_step
from art.tracking.folders import get_step_from_dir as get_step_from_dir

__all__ = ["get_model_step", "get_step_from_dir"]

