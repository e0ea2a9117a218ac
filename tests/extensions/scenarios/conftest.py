"""Servers that misbehave, and a model that is a function."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "mcp"))

from mcp_fixtures import agent, babbling, endpoint, patience  # noqa: F401  fixtures
