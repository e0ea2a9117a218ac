"""Where an MCP server is: a command to start, an address, or an object in this process."""

from __future__ import annotations

import functools
import inspect
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from art.errors import ConfigurationError
from art.process.root_logger import preserve_root_logger

EVERY_TOOL = "*"
"""The entry of `read_only` by which all tools of the server only read."""

_SECRET = re.compile(r"(?i)(key|token|secret|passw|credential|auth)")
_BEFORE_VALUE = re.compile(r"[=:]")
"""KEY=value, Authorization: Bearer value, {"apiKey": "value"}."""
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s.*")
_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""The user and password of an address: postgresql://user:password@host/db."""


@dataclass(frozen=True, kw_only=True)
class StdioServer:
    """A program that is started for each session and spoken to over its standard input and output.

    It inherits PATH, HOME, LANG and the like alone; what else it needs, keys included, is given in `env`.
    """

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | Path | None = None
    read_only: tuple[str, ...] = ()
    """Tools that only read, though the server does not say so itself; ("*",): all."""

    @property
    def label(self) -> str:
        """The command for people, without what looks like a secret."""
        shown, hide = [self.command], False
        for argument in self.args:
            shown.append("***" if hide else without_secrets(argument))
            named = argument.startswith("-") and not _BEFORE_VALUE.search(argument)
            hide = not hide and named and bool(_SECRET.search(argument))
        return shlex.join(shown)


def without_secrets(argument: str) -> str:
    """A word of a command: what follows the name of a secret is hidden, and users of addresses are.

    >>> without_secrets("Authorization: Bearer abc"), without_secrets("postgresql://me:abc@host/db")
    ('Authorization:***', 'postgresql://***@host/db')
    """
    name = _SECRET.search(argument)
    value = _BEFORE_VALUE.search(argument, name.end()) if name else None
    if value is not None:
        argument = f"{argument[: value.end()]}***"
    return _USER.sub("***", _BEARER.sub(r"\1 ***", argument))


@dataclass(frozen=True, kw_only=True)
class HttpServer:
    """A server that answers streamable HTTP at `url`."""

    url: str = field(repr=False)
    """The URL with its query, in which many services carry a key. It is sent, and never shown."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request, for keys: {"Authorization": "Bearer ..."}; never shown."""
    read_only: tuple[str, ...] = ()
    """Tools that only read, though the server does not say so itself; ("*",): all."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"{self.label!r} is no address of an MCP server; it looks like https://host/mcp"
            )

    @property
    def label(self) -> str:
        """The address without user, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclass(frozen=True, kw_only=True)
class InProcessServer:
    """A server object of the `mcp` SDK (`MCPServer`, or the low-level `Server`) in this process.

    A function that makes one gives each session a server of its own.
    """

    server: Any
    read_only: tuple[str, ...] = ()
    """Tools that only read, though the server does not say so itself; ("*",): all."""

    @property
    def label(self) -> str:
        """The server's name, or that of the function that makes it."""
        for attribute in ("name", "__name__"):
            if isinstance(name := getattr(self.server, attribute, None), str):
                return name
        return type(self.server).__name__

    def make(self) -> Any:
        """The server of a new session."""
        if not _is_factory(self.server):
            return self.server
        with preserve_root_logger():
            return self.server()


Server = StdioServer | HttpServer | InProcessServer


def parse_server(spec: Any) -> Server:
    """The server that `spec` describes.

    spec: a command as a line or a list of words, an http(s) address, an entry of an `mcpServers`
    configuration ({"command", "args", "env", "cwd"} or {"url", "headers"}), a server object of the `mcp` SDK
    or a function that makes one, or a server description as it is. Raises ConfigurationError for anything
    else.
    """
    if isinstance(spec, StdioServer | HttpServer | InProcessServer):
        return spec
    if isinstance(spec, str):
        return _of_words([spec.strip()] if _is_address(spec) else _split(spec))
    if isinstance(spec, Mapping):
        return _of_entry(spec)
    if isinstance(spec, Sequence) and all(isinstance(word, str) for word in spec):
        return _of_words(spec)
    if _is_factory(spec) or hasattr(spec, "get_capabilities") or hasattr(spec, "streamable_http_app"):
        return InProcessServer(server=spec)
    raise ConfigurationError(
        f"{type(spec).__name__} object is no MCP server: give a command, a list of words, an http(s) "
        'address, a dict with "command" or "url", or a server of the mcp SDK'
    )


def _is_factory(made: Any) -> bool:
    return inspect.isroutine(made) or isinstance(made, type | functools.partial)


def _is_address(text: str) -> bool:
    return text.strip().lower().startswith(("http://", "https://"))


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigurationError(f"the server's command cannot be split into words: {error}") from None


def _of_words(words: Sequence[str]) -> Server:
    if not words or not words[0]:
        raise ConfigurationError("an MCP server needs a command or an http(s) address; nothing was given")
    if len(words) == 1 and _is_address(words[0]):
        return HttpServer(url=words[0])
    if "://" in words[0]:
        raise ConfigurationError(
            f"{without_secrets(words[0])!r} is no address of an MCP server; it looks like https://host/mcp"
        )
    return StdioServer(command=words[0], args=tuple(words[1:]))


def _of_entry(entry: Mapping[str, Any]) -> Server:
    kinds: dict[str, type[StdioServer] | type[HttpServer]] = {"command": StdioServer, "url": HttpServer}
    known = {
        "command": ("command", "args", "env", "cwd", "read_only"),
        "url": ("url", "headers", "read_only"),
    }
    kind = next((name for name in kinds if name in entry), None)
    if kind is None:
        raise ConfigurationError(
            f'an MCP server as a dict has "command" or "url"; this one has {sorted(entry)}'
        )
    fields = {
        name: value for name, value in entry.items() if name != "type"
    }  # as other clients' files have it
    if unknown := sorted(fields.keys() - set(known[kind])):
        raise ConfigurationError(f"unknown {unknown} of an MCP server; known: {list(known[kind])}")
    for name in ("args", "read_only"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return kinds[kind](**fields)
