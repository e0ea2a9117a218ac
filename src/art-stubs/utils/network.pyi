# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.process.resources import find_free_tcp_port as find_free_tcp_port

__all__ = ["find_free_tcp_port"]

