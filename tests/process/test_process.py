"""What ART's processes share: listening."""

from __future__ import annotations

import socket

import pytest

from art.process.resources import listen
from waiting import DEADLINE_S


def test_a_listener_names_its_protocol_and_takes_connections() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # asyncio looks at this before it turns Nagle off
        with socket.create_connection(listener.getsockname(), timeout=DEADLINE_S):
            pass


def test_a_taken_port_is_an_error() -> None:
    with listen("127.0.0.1", 0) as listener, pytest.raises(OSError):
        listen("127.0.0.1", listener.getsockname()[1])
