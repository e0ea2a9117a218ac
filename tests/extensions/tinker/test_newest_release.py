"""A job of CI runs these tests with the newest release of the client, each week."""

from __future__ import annotations

import os
import subprocess

import pytest
import yaml
from tinker_service import ROOT


@pytest.mark.slow
def test_a_scheduled_job_runs_them() -> None:
    found = yaml.safe_load((ROOT / ".github" / "workflows" / "tinker.yml").read_text())
    assert "schedule" in found[True]  # YAML reads the word `on` so
    (step,) = [one for one in found["jobs"]["newest"]["steps"] if "run" in one]
    told = subprocess.run(
        [*step["run"].split(), "--dry-run", "--always-make"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "TINKER": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    *_, install, tests = told.stdout.splitlines()
    assert install.endswith(' "tinker"') and ".venv-tinker-newest" in install
    assert "ART_TEST_EVERYTHING=1 ART_TEST_TINKER=.venv-tinker-newest" in tests
    assert "pytest" in tests and " tests/extensions/tinker " in tests
