"""The server's limit of open files is raised, whatever the shell's is."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import resource
from art.process.resources import raise_file_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
held = raise_file_limit()
assert held == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(held)
"""


def held_with(soft: str, hard: str) -> int:
    program = PROGRAM.format(soft=soft, hard=hard)
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)


def test_a_shells_limit_is_raised_to_the_hard_one() -> None:
    assert held_with("256", "3000") == 3000


def test_a_high_limit_stays() -> None:
    assert held_with("3000", "3000") == 3000
