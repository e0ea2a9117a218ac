# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.options.dedicated_gpus import is_dedicated_mode as is_dedicated_mode
from art.client.options.dedicated_gpus import validate_dedicated_config as validate_dedicated_config

__all__ = ["is_dedicated_mode", "validate_dedicated_config"]

