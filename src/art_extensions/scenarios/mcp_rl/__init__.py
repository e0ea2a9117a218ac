"""MCP-RL: from an MCP server to a model that has learned to use it."""
