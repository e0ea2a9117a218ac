"""Run the weather server: over stdio, or with --http over streamable HTTP at http://HOST:PORT/mcp."""

from __future__ import annotations

import argparse

from art_extensions.testing.mcp_servers import add_transport, serve
from art_extensions.testing.mcp_servers.weather import create_server


def main() -> None:
    """Serve until the client leaves (stdio) or the process is ended (HTTP)."""
    parser = argparse.ArgumentParser(prog="python -m art.mcp.servers.weather", description=__doc__)
    add_transport(parser)
    options = parser.parse_args()
    serve(create_server(), options)


if __name__ == "__main__":
    main()
