"""Older configurations of a server are written without keys."""

from __future__ import annotations

from art.dev import get_openai_server_config
from art.wire.nested import without_keys

KEY = "sk-secret-123-of-a-user"


def test_configs_of_servers_are_written_without_keys() -> None:
    config = get_openai_server_config("agent", "base", "log", config={"server_args": {"api_key": KEY}})
    assert config["server_args"]["api_key"] == KEY  # it is the program's own to read
    assert KEY not in str(without_keys(config))
