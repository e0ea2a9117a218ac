"""A listening socket whose small replies leave at once."""

from __future__ import annotations

import socket


def listen(host: str, port: int, *, backlog: int = 256) -> socket.socket:
    """A socket that says it is TCP; port 0 takes a free one. Raises OSError when the address is taken.

    asyncio turns Nagle's delay (40 ms a reply) off only for sockets whose protocol is named, and
    `socket.create_server` leaves it unnamed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def find_free_tcp_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago. Who can should listen on port 0 instead: another program may be
    faster.
    """
    with listen(host, 0) as listener:
        port: int = listener.getsockname()[1]
    return port
