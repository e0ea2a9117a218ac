"""The way to an MCP server: what it is, what it offers, calls, tapes of them."""
