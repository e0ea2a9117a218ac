# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.launch.backend import SkyPilotBackend as SkyPilotBackend

__all__ = ["SkyPilotBackend"]

