"""HTTP to our own workers: on loopback, in plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


def no_tls() -> ssl.SSLContext:
    """For a client that speaks plain HTTP alone. It trusts nobody, so it loads no certificates: that would
    hold up the event loop for 50 ms and more.
    """
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
