"""Which versions of vLLM this engine was tested with, and what belongs to them."""

from __future__ import annotations

import re

from art.errors import ConfigurationError

TESTED = "0.32.0"
"""What `art runtime install` takes, and what the tests run with."""
FIRST, BEYOND = (0, 32), (0, 33)
"""Versions from FIRST to below BEYOND are taken."""


def check_version(version: str, remedy: str) -> None:
    """Raises: ConfigurationError, in one line with the remedy, for a version outside of the tested range."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    found = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not FIRST <= found < BEYOND:
        first, beyond = (".".join(map(str, bound)) for bound in (FIRST, BEYOND))
        raise ConfigurationError(
            f"vLLM {version} is outside of the tested versions ({first} up to, without, {beyond}); {remedy}"
        )
