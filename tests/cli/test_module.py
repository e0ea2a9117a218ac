"""`python -m art`: the command where its script is not on the PATH."""

from __future__ import annotations

import subprocess
import sys

import pytest

import art


@pytest.mark.slow
def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "art", "--version"], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["art", art.__version__]
