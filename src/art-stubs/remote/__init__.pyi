# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.client.backends.remote_backend import RemoteBackend as RemoteBackend

__all__ = ["RemoteBackend"]

