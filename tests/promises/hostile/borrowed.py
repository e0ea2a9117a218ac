"""The servers and files of other rooms' tests: whoever imports this finds them."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path += [str(TESTS), *(str(TESTS / name) for name in ("server", "rendering", "extensions/tinker"))]
