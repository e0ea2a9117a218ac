"""HTTP to our own workers: on loopback, in plain text."""

from __future__ import annotations

import ssl


def no_tls() -> ssl.SSLContext:
    """For a client that speaks plain HTTP alone. It trusts nobody, so it loads no certificates: that would
    hold up the event loop for 50 ms and more.
    """
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
