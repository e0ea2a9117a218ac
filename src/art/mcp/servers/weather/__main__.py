"""Run the weather server: over stdio, or with --http over streamable HTTP at http://HOST:PORT/mcp."""

from __future__ import annotations

import argparse

from art.mcp.servers.weather.server import create_server


def main() -> None:
    """Serve until the client leaves (stdio) or the process is ended (HTTP)."""
    parser = argparse.ArgumentParser(prog="python -m art.mcp.servers.weather", description=__doc__)
    parser.add_argument("--http", action="store_true", help="streamable HTTP instead of stdio")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    server = create_server()
    if options.http:
        server.run("streamable-http", host=options.host, port=options.port)
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
