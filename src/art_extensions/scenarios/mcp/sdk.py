"""The official SDK of the protocol, in either version, which is loaded here and no earlier."""

from __future__ import annotations

from typing import Any

from art.errors import extra_needed

CLOSED = -32000
"""The code of the error that says that the connection is closed."""


def load_sdk() -> Any:
    """The `mcp` package. Raises MissingExtraError."""
    with extra_needed("mcp", "MCP"):
        import mcp
    return mcp


def has_version_2() -> bool:
    """Returns whether the SDK is version 2. Raises MissingExtraError."""
    return hasattr(load_sdk(), "Client")


def sdk_error() -> type[Any]:
    """The exception of the SDK that has an error of the protocol, as `error.error`."""
    sdk = load_sdk()
    kind: type[Any] = sdk.MCPError if has_version_2() else sdk.McpError
    return kind
