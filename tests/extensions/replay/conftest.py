"""A Postgres, for a run whose server kept its jobs and samples there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "server"))

from database_fixtures import postgres  # noqa: F401  a fixture
