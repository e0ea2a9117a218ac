"""MCP servers that ship as examples: real ones, to connect to and to train on."""
