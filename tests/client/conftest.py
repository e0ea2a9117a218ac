from __future__ import annotations

from backend_fixtures import backend, double, model, server  # noqa: F401  fixtures
