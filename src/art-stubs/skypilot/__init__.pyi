# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from typing import Any


__all__ = []

SkyPilotBackend: Any
stop_server: Any
