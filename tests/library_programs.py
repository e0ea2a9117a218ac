"""Environments of Python that have libraries of others, and what the tests of these run there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "tests" / "extensions" / "environments" / "programs"


def python_of(place: str) -> Path:
    return ROOT / place / "bin" / "python"


def is_missing(place: str) -> bool:
    """Whether an environment is not made, and need not be: `make test-all` asks for all."""
    return not python_of(place).exists() and not os.environ.get("ART_TEST_EVERYTHING")


def needs(place: str) -> pytest.MarkDecorator:
    """Skips tests, with the remedy, where an environment is missing."""
    return pytest.mark.skipif(is_missing(place), reason=f"no {place}: `make {place}/.installed`")


def told_by(place: str, program: str, *words: str, timeout_s: float = 580.0) -> dict[str, Any]:
    """Runs a program to its end. Returns what its last line says, which is JSON."""
    variables = {
        **{"PATH": os.environ["PATH"], "HOME": str(Path.home()), "HF_HUB_OFFLINE": "1"},
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", PROGRAMS, ROOT / "tests" / "contracts"))),
    }
    done = subprocess.run(
        [str(python_of(place)), "-W", "ignore", str(PROGRAMS / program), *words],
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
