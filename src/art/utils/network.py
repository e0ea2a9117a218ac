"""A free port: the import path that users know."""

from __future__ import annotations

from art.process.listening import find_free_tcp_port

__all__ = ["find_free_tcp_port"]
