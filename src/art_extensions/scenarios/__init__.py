"""Runs whose scenarios are generated: from the tools of an MCP server, or from the description of a task."""
