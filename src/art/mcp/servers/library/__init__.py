"""A SQLite database as an MCP server: `python -m art.mcp.servers.library`.

It answers about a shipped lending library, or a database of your own (`--database FILE`), and only reads.
"""
