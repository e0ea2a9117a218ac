"""A sampling parameter is declared once: a new one is in `art/wire/sampling.py`, and its computation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from source_files import files_that_name

import art

HERE = Path(__file__).parent
HELPERS = (HERE.parents[1], HERE.parents[1] / "server")
SOURCE = Path(art.__file__).parent
OTHERS_WORDS = ("client/options/foreign_options.py", "compat/", "rewards/llm/")
"""Options of trainers and of judges that have the same names."""


@pytest.mark.slow
def test_a_new_parameter_is_one_line_for_requests_document_engines_ledger_and_trainer() -> None:
    """Two that are made up, in a process of their own."""
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, HELPERS))}
    command = [sys.executable, str(HERE / "made_up_parameters.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=paths, timeout=240, check=False)
    assert done.returncode == 0 and done.stdout.strip() == "fits", done.stderr


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_a_parameter_stands_in_at_most_four_files(name: str) -> None:
    files = files_that_name(name, SOURCE)
    own = {path for path in files if not path.startswith(OTHERS_WORDS)}
    assert "wire/sampling.py" in own and len(own) <= 4, own
