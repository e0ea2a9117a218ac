# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.compat.dev_config import get_model_config as get_model_config

__all__ = ["get_model_config"]

