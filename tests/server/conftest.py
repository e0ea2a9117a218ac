"""The fixtures of a gateway, and of where its ledger and jobs are."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "rendering"))  # its real tokenizers

from database_fixtures import home, postgres  # noqa: F401  fixtures
from gateway_fixtures import engine, live, renderer  # noqa: F401  fixtures
