from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "client"))
sys.path.append(str(Path(__file__).parents[2] / "tracking"))

from backend_fixtures import backend, double, model, server  # noqa: F401  fixtures
