"""A gateway with the other APIs of agents."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "server"))
sys.path.append(str(Path(__file__).parents[2] / "rendering"))

from gateway_fixtures import engine, live, renderer  # noqa: F401  fixtures
