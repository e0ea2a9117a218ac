"""The program of the guide, with the real SDK, word for word: its model learns what the page says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import pytest
from tinker_service import DONE, PYTHON, ROOT, Service, serving, with_sdk

GUIDE = ROOT / "docs" / "guides" / "tinker.md"
pytestmark = with_sdk


REAL = {"art/nano-games": "art/smollm2", "2e-3": "5e-4"}
"""What differs for a model that others trained."""


def run_guide(
    service: Service, changes: Mapping[str, str] | None = None, *, limit_s: float = 400
) -> list[float]:
    """The mean reward of each step of the guide's program."""
    blocks = re.findall(r"^```text\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)
    (program,) = [one for one in blocks if "import tinker" in one]
    for word, other in (changes or {}).items():
        assert word in program
        program = program.replace(word, other)
    try:
        done = subprocess.run(
            [str(PYTHON), "-c", program],
            env=service.variables,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = [(error.stdout or b"").decode(), (error.stderr or b"").decode()[-3000:]]
        pytest.fail("\n".join([str(error)[-60:], *said, service.log.read_text()[-3000:], service.describe()]))
    assert done.returncode in DONE, done.stderr[-3000:] + service.log.read_text()[-3000:]
    rewards = [float(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(rewards) == 12
    return rewards


def test_the_program_of_the_guide_learns(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as service:
        rewards = run_guide(service)
    assert rewards[0] < 0.6 and fmean(rewards[-3:]) > 0.8


def test_a_real_model_learns_at_its_own_size(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as service:
        rewards = run_guide(service, REAL)
    assert rewards[0] < 0.3 and fmean(rewards[-3:]) > 0.8
