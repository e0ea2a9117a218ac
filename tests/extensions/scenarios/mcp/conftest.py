from __future__ import annotations

from mcp_fixtures import agent, babbling, endpoint, http_address, patience, program  # noqa: F401  fixtures
