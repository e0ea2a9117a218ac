"""`_openai_client_config` of `model.register`: where the server of a backend listens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from art.errors import ConfigurationError
from art.remote.config.engine import ENGINE_ARGS, SERVER_ARGS
from art.remote.config.keys import acts, noted, read_keys

KEYS = {
    **acts(server_args="Where the server listens, below.", engine_args="As in `_internal_config`."),
    **noted("the server's log is `<path>/server/logs/server.log`", "log_file"),
}
_WHERE = "_openai_client_config"
_SHORTEST_KEY = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """What of the configuration acts; None where nothing is said."""

    host: str | None = None
    port: int | None = None
    api_key: str | None = field(default=None, repr=False)
    max_context: int | None = None

    @property
    def place(self) -> dict[str, Any]:
        """What is said of where the server listens."""
        told = {"host": self.host, "port": self.port, "api_key": self.api_key}
        return {name: value for name, value in told.items() if value is not None}


def server_config(config: Mapping[str, Any] | None) -> ServerConfig:
    """Read it. Raises ConfigurationError for unknown keys, for those that cannot act, and for wrong
    values.
    """
    sections = read_keys(_WHERE, config, KEYS)
    server = read_keys(f"{_WHERE}['server_args']", sections.get("server_args"), SERVER_ARGS)
    engine = read_keys(f"{_WHERE}['engine_args']", sections.get("engine_args"), ENGINE_ARGS)
    host, port, key = server.get("host"), server.get("port"), server.get("api_key")
    if host is not None and not (isinstance(host, str) and host):
        raise _wrong("server_args", "host", host, "a name or an address")
    if port is not None and not (_whole(port) and 0 <= port <= 65535):
        raise _wrong("server_args", "port", port, "a number from 0 (any free one) to 65535")
    fit = isinstance(key, str) and len(key) >= _SHORTEST_KEY and key.isascii() and key.isprintable()
    if key is not None and (not fit or " " in key):
        raise _wrong("server_args", "api_key", "...", f"at least {_SHORTEST_KEY} printable ASCII characters")
    length = engine.get("max_model_len")
    if length is not None and not (_whole(length) and length >= 1):
        raise _wrong("engine_args", "max_model_len", length, "a whole number of at least 1")
    return ServerConfig(host=host, port=port or None, api_key=key, max_context=length)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(section: str, name: str, value: Any, takes: str) -> ConfigurationError:
    return ConfigurationError(f"{_WHERE}[{section!r}][{name!r}] is {value!r}; it is {takes}")
