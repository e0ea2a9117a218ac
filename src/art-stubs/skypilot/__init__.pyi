# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.launch.backend import SkyPilotBackend as SkyPilotBackend
from art_extensions.launch.backend import stop_server as stop_server

__all__ = ["SkyPilotBackend", "stop_server"]

