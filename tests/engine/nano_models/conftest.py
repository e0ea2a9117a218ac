from __future__ import annotations

from importlib.util import find_spec

BUILDER = ["test_nano_builder.py", "test_nano_words.py"]
"""The builder teaches nano-mcp the tools of an MCP server."""
collect_ignore = [] if find_spec("art_extensions.scenarios") else BUILDER
