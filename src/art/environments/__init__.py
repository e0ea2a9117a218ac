"""The worlds that a policy acts in: built-in tasks, tools of MCP servers, and models to test against."""
